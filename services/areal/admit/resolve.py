"""Resolver of a job for this machine: finds files, chooses ports, refuses what can't run, before anything is written.

Reads the disk to find files; writes nothing (`write_run` does) and starts nothing.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from areal.admit.recipe_names import defines
from areal.admit.resume import check_same_run, refuse_occupied
from areal.errors import ConfigError
from areal.plan import hub
from areal.plan.cluster_names import Role
from areal.plan.layout import RunLayout
from areal.plan.ports import free_ports
from areal.plan.resolved import Endpoints, ResolvedJob, Verifier
from areal.plan.role_specs import redis_logins
from areal.plan.roles import PortAllocator, assign_ports, role_instances
from areal.spec.job import RLJob
from areal.spec.locality import hub_models, where_models_come_from
from areal.spec.locate import locate, must_locate
from areal.spec.model_families import refuse_unclassifying
from areal.spec.sources import Dataset, DatasetSource, on_volume
from areal.spec.teacher import PolicyTeacher

_HOST = "127.0.0.1"


def resolve(
    job: RLJob,
    *,
    run_dir: Path,
    base_dir: Path,
    ports: PortAllocator = free_ports,
    resume: bool = False,
    uid: str | None = None,
) -> ResolvedJob:
    """The job with its files found, its addresses chosen and its roles known.

    Args:
        job: a job that passed `check`.
        run_dir: where the run will keep everything; must be empty or absent, or a run of the same job with `resume`.
        base_dir: the job file's directory; relative paths are looked for below the current directory, then below it.
        ports: gives free ports.
        resume: continue the run in `run_dir`: its identity is kept, its ports are new.
        uid: of the run; made up when None.

    Raises:
        ConfigError: a file is missing (naming every place tried), the directory is occupied, or a resumed job differs.
    """
    run_dir = run_dir.absolute()
    earlier = None
    if resume:
        earlier = ResolvedJob.load(RunLayout(run_dir).resolved)
        check_same_run(earlier.job, job)
    else:
        refuse_occupied(run_dir)
    of_hub = hub_models(job.spec) if earlier else {}
    model = earlier.model_path if earlier and "spec.model.uri" in of_hub else _model(job, base_dir)
    teacher = earlier.teacher_path if earlier and job.spec.teacher_field in of_hub else teacher_of(job, base_dir)
    scores = earlier.reward_model_path if earlier and "spec.reward.model.path" in of_hub else None
    recipe = recipe_file(job, base_dir)
    verifier = verifier_of(job, recipe)
    instances = role_instances(job, verifier)
    table = assign_ports(instances, ports)
    layout = RunLayout(run_dir)
    gateways = [instance.name for instance in instances if instance.role is Role.GATEWAY]

    def address(row: str, purpose: str = "grpc") -> str | None:
        return f"{_HOST}:{table[row][purpose]}" if row in table else None

    return ResolvedJob(
        job=job,
        uid=earlier.uid if earlier else uid or f"{job.metadata.name}-{secrets.token_hex(4)}",
        digest=job.digest(),
        run_dir=run_dir,
        model_path=model,
        tokenizer_path=_tokenizer(job, base_dir, model),
        recipe_source=recipe,
        recipe_path=layout.recipe / recipe.name if recipe else None,
        hooks_path=_hooks(job, base_dir),
        reward_model_path=scores or reward_model_of(job, base_dir),
        teacher_path=teacher,
        dataset=_dataset(job, base_dir),
        verifier=verifier,
        endpoints=Endpoints(
            controller=address("controller") or "",
            redis=address("redis", "main"),
            reward=address("reward") or address("reward-model"),
            reward_custom=address("reward-custom"),
            boxes=address("boxes"),
            trainer=address("trainer") if job.spec.weights_by_group else None,
            gateways=[f"{_HOST}:{table[row]['grpc']}" for row in gateways],
            gateway_urls=[f"http://{_HOST}:{table[row]['http']}" for row in gateways],
        ),
        redis_users={user: layout.redis_password(user) for user in redis_logins().values() if "redis" in table},
        ports=table,
    )


def recipe_file(job: RLJob, base_dir: Path) -> Path | None:
    """The user's recipe; None when the job has none."""
    if job.spec.recipe is None or job.spec.recipe.file is None:
        return None
    return must_locate(
        job.spec.recipe.file,
        base_dir,
        what="the recipe",
        where=job.where("spec.recipe.file"),
        fix="Correct recipe.file, or remove the recipe and name a built-in reward.verifier.",
    )


def verifier_of(job: RLJob, recipe: Path | None) -> Verifier | None:
    """Who scores: what the job names, else the recipe's `reward`, else nobody but the workflow itself."""
    if not job.spec.is_rl:
        return None
    if job.spec.reward.verifier is not None:
        return job.spec.reward.verifier
    return "custom" if recipe is not None and defines(recipe, "reward") else None


def _model(job: RLJob, base_dir: Path) -> Path:
    model = job.spec.model
    if hub.is_hub(model.uri) and (copy := hub.cached(model.uri)) is not None:
        return check_model(copy, job.where("spec.model.uri"))
    if model.path is None:
        raise ConfigError(
            f"{job.where('spec.model')}: model.uri {model.uri!r} is no directory of this machine",
            fix="Download the model and name its directory in model.path.",
        )
    found = must_locate(
        model.path,
        base_dir,
        what="the model",
        where=job.where("spec.model.path"),
        fix=where_models_come_from(model.path),
    )
    return check_model(found, job.where("spec.model.path"))


def check_model(found: Path, where: str, *, weights: bool = True) -> Path:
    """The directory, when it holds a model, with `weights` or without; `where` is the field's place in the job file."""
    if not (found / "config.json").exists() or (weights and not any(found.glob("*.safetensors"))):
        raise ConfigError(
            f"{where}: {found} is no Hugging Face model: it needs config.json and *.safetensors",
            fix="Name the directory of a model saved with `save_pretrained`, or make one with `areal init-model`.",
        )
    return found


def _tokenizer(job: RLJob, base_dir: Path, model: Path) -> Path:
    named = job.spec.model.tokenizer
    field = "spec.model.tokenizer" if named else "spec.model.path"
    found = model
    if named:
        fix = "Correct model.tokenizer, or leave it out to use the model's own."
        found = must_locate(named, base_dir, what="the tokenizer", where=job.where(field), fix=fix)
    return check_tokenizer(found, job.where(field))


def check_tokenizer(found: Path, where: str) -> Path:
    """The directory, when it holds a tokenizer."""
    if not (found / "tokenizer.json").exists():
        raise ConfigError(
            f"{where}: there is no tokenizer.json in {found}",
            fix="Save a fast tokenizer there, or name its directory in model.tokenizer.",
        )
    return found


def reward_model_of(job: RLJob, base_dir: Path) -> Path | None:
    """The model of the verifier `model`; None when that isn't who scores, and of one on a cluster's volume.

    Raises ArealError when it is none.
    """
    reward = job.spec.reward
    if not job.spec.is_rl or reward.verifier != "model" or reward.model is None or on_volume(reward.model.path):
        return None
    where = job.where("spec.reward.model.path")
    fix = "Train one (training.name: RewardModel) and name its run's model directory."
    return check_reward_model(_model_at(reward.model.path, base_dir, "the reward model", where, fix), where)


def check_reward_model(found: Path, where: str) -> Path:
    """The directory, when it holds a reward model with its tokenizer. Raises ArealError otherwise."""
    check_model(found, where)
    refuse_unclassifying(json.loads((found / "config.json").read_bytes()), str(found))
    return check_tokenizer(found, where)


def teacher_of(job: RLJob, base_dir: Path) -> Path | None:
    """The model that the job learns from; None without one, and of one on a cluster's volume.

    Raises ConfigError when it is no model.
    """
    teacher, field = job.spec.teacher, job.spec.teacher_field
    if teacher is None or on_volume(teacher.path):
        return None
    where = job.where(field)
    fix = f"Correct {field.removeprefix('spec.')}."
    found = _model_at(teacher.path, base_dir, "the teacher", where, fix)
    return check_tokenizer(check_model(found, where, weights=not served_elsewhere(job)), where)


def served_elsewhere(job: RLJob) -> bool:
    """Whether the teacher is behind an address, so that its weights aren't the trainer's to load."""
    return isinstance(job.spec.teacher, PolicyTeacher) and job.spec.teacher.endpoint is not None


def _model_at(source: str, base_dir: Path, what: str, where: str, fix: str) -> Path:
    """The directory that a field names, or this machine's copy of a model of the hub."""
    if not hub.is_hub(source):
        return must_locate(source, base_dir, what=what, where=where, fix=fix)
    if (copy := hub.cached(source)) is None:
        raise ConfigError(
            f"{where}: {what} {source} isn't on this machine", fix="Start it with `areal run`, which downloads it."
        )
    return copy


def _hooks(job: RLJob, base_dir: Path) -> Path | None:
    hooks = job.spec.trainer.hooks
    if hooks is None:
        return None
    where = job.where("spec.trainer.hooks")
    return must_locate(hooks, base_dir, what="the hooks file", where=where, fix="Correct trainer.hooks, or remove it.")


def _dataset(job: RLJob, base_dir: Path) -> Dataset:
    dataset = job.spec.dataset
    train = _source(job, dataset.train, base_dir, "spec.dataset.train")
    evaluation = dataset.evaluation and _source(job, dataset.evaluation, base_dir, "spec.dataset.evaluation")
    return Dataset(train=train, evaluation=evaluation)


def _source(job: RLJob, source: DatasetSource, base_dir: Path, field: str) -> DatasetSource:
    """The source with absolute paths. A Hugging Face path that exists nowhere is a name on the hub."""
    if source.jsonl is not None:
        fix = f"Correct {field.removeprefix('spec.')}.jsonl; the quickstart's data is made by `make quickstart`."
        where = job.where(f"{field}.jsonl")
        found = must_locate(source.jsonl, base_dir, what="the dataset", where=where, fix=fix)
        return source.model_copy(update={"jsonl": str(found)})
    if source.hugging_face is not None:
        local = locate(source.hugging_face.path, base_dir)
        hub = source.hugging_face.model_copy(update={"path": str(local) if local else source.hugging_face.path})
        return source.model_copy(update={"hugging_face": hub})
    return source
