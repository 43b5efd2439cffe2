"""Sources of a job: where its recipe, models and rows are, on this machine or in the pod that prepares the run."""

from dataclasses import dataclass
from pathlib import Path

from areal.errors import ConfigError
from areal.plan import ResolvedJob, remote
from areal.spec import RLJob
from areal.spec.locality import in_store, where_models_come_from
from areal.spec.locate import locate, must_locate
from areal.spec.sources import Dataset, DatasetSource, on_volume

_WORDS = {  # what people call a field's file, and how to mend it
    "spec.recipe.file": (
        "the recipe", "Correct recipe.file, or remove the recipe and name a built-in reward.verifier."
    ),
    "spec.model.tokenizer": ("the tokenizer", "Correct model.tokenizer, or leave it out to use the model's own."),
    "spec.trainer.hooks": ("the hooks file", "Correct trainer.hooks, or remove it."),
    "spec.reward.model.path": (
        "the reward model", "Train one (training.name: RewardModel) and name its run's model directory."
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sources:
    """Where a job's files are. None: it names none, or it isn't there.

    `teacher` and `reward_model` are None, too, where nobody loads them, `dataset` is the job's own block, with absolute
    paths of what is there.
    """

    recipe: Path | None
    hooks: Path | None
    model: Path | None
    tokenizer: Path | None
    teacher: Path | None
    reward_model: Path | None
    dataset: Dataset


def sources_of(job: RLJob, base_dir: Path, *, strict: bool = False) -> Sources:
    """What a job file names on this machine; relative paths as everywhere in a job.

    With `strict` ConfigError for the first file that isn't there, naming every place tried; a model that is fetched and
    isn't on this machine is None in any case.
    """
    spec, reward = job.spec, job.spec.reward

    def found(field: str, path: str | None) -> Path | None:
        if path is None or on_volume(path):
            return None
        if remote.is_remote(path):
            return remote.cached(path)
        if not strict:
            return locate(path, base_dir)
        what, fix = _WORDS.get(field, ("the teacher", f"Correct {field.removeprefix('spec.')}."))
        if field == "spec.model.path":
            what, fix = "the model", where_models_come_from(path)
        return must_locate(path, base_dir, what=what, where=job.where(field), fix=fix)

    def place_of(path: str) -> Path | None:
        return remote.cached(path) if in_store(path) else locate(path, base_dir)

    def rows(field: str, source: DatasetSource) -> DatasetSource:
        """A Hugging Face path that exists nowhere is a name on the hub; rows not fetched keep their address."""
        if (path := source.jsonl) is not None:
            where = f"{field}.jsonl"
            fix = f"Correct {where.removeprefix('spec.')}; the quickstart's data is made by `make quickstart`."
            place = place_of(path)
            if place is None and strict:
                must_locate(path, base_dir, what="the dataset", where=job.where(where), fix=fix)
            return source if place is None else source.model_copy(update={"jsonl": str(place)})
        if (named := source.hugging_face) is not None and (local := place_of(named.path)) is not None:
            return source.model_copy(update={"hugging_face": named.model_copy(update={"path": str(local)})})
        return source

    model = found("spec.model.path", spec.model.path)
    if model is None and remote.is_remote(spec.model.uri):
        model = remote.cached(spec.model.uri)
    scored = reward.model.path if spec.is_rl and reward.verifier == "model" and reward.model is not None else None
    named = spec.dataset.named.items()
    dataset = spec.dataset.replaced({field: rows(field, source) for field, source in named})
    return Sources(
        recipe=found("spec.recipe.file", spec.recipe.file if spec.recipe else None),
        hooks=found("spec.trainer.hooks", spec.trainer.hooks),
        model=model,
        tokenizer=found("spec.model.tokenizer", spec.model.tokenizer) if spec.model.tokenizer else model,
        teacher=found(spec.teacher_field, spec.teacher.path if spec.teacher else None),
        reward_model=found("spec.reward.model.path", scored),
        dataset=dataset,
    )


def sources_in_pods(resolved: ResolvedJob) -> Sources:
    """What a resolved job names on volumes and in this image. Raises ConfigError for the first that isn't there."""
    dataset = resolved.dataset
    named = {
        "spec.recipe": resolved.recipe_source,
        "spec.trainer.hooks": resolved.hooks_path,
        **{f"{field}.jsonl": source.jsonl for field, source in dataset.named.items()},
        "spec.model": resolved.model_path,
        "spec.model.tokenizer": resolved.tokenizer_path,
        resolved.spec.teacher_field.removesuffix(".path"): resolved.teacher_path,
        "spec.reward.model": resolved.reward_model_path,
    }
    for field, path in named.items():
        if path is not None and not Path(path).exists():
            raise ConfigError(
                f"{field}: there is no {path} in the pod that prepares the run",
                fix="Correct the path; it is looked for on the volume of its pvc:// address, or in the image of tools.",
            )
    return Sources(
        recipe=resolved.recipe_source,
        hooks=resolved.hooks_path,
        model=resolved.model_path,
        tokenizer=resolved.tokenizer_path,
        teacher=resolved.teacher_path,
        reward_model=resolved.reward_model_path,
        dataset=dataset,
    )
