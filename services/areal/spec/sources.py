"""The source blocks: model, recipe, datasets.

Files are named by a path on the machine that runs the job, or by `pvc://claim/path` on a cluster's volume.
"""

from collections.abc import Mapping
from typing import Any, Literal

from areal.spec.block import SpecBlock, knob, resting
from areal.spec.text import FiniteMapping, Name, PathText, Word

VOLUME = "pvc://"
STORES = ("s3://", "gs://", "az://")


def on_volume(source: str) -> bool:
    """Whether a source is on a cluster's volume, not a path."""
    return source.startswith(VOLUME)


class HubToken(SpecBlock):
    """A token of the Hugging Face hub, in a Secret of the job's namespace."""

    name: Name = knob(what="The Secret's name.")
    key: str = knob("token", what="Which of its keys.", min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")


class ModelBlock(SpecBlock):
    """The model that the run starts from. Give exactly one of path and uri."""

    path: PathText | None = knob(None, what="A Hugging Face model directory on this machine.")
    uri: PathText | None = knob(
        None, what="pvc://claim/path on a cluster; or hf://owner/name@revision, or a folder s3://bucket/name, gs://, "
        "az://, which are downloaded: by `areal run` to this machine's cache, on a cluster to the run's volume.",
    )  # fmt: skip
    token_secret: HubToken | None = knob(
        None, what="Cluster only: the Secret with the token for private or gated models of hf://. Here it is HF_TOKEN."
    )
    tokenizer: PathText | None = knob(
        None, what="A tokenizer directory, or pvc://claim/path; the model's own unless given."
    )
    chat_template: str | None = knob(
        None, what="A chat template in the tokenizer's place: the Jinja text, or a file, which the job then carries.",
        min_length=1, max_length=1 << 18,
    )  # fmt: skip
    chat_template_kwargs: dict[Word, Any] = knob(
        dict, what="Arguments of the chat template, such as enable_thinking; rows and requests may set these names.",
        max_length=64,
    )  # fmt: skip


class ConfigMapKey(SpecBlock):
    """A file in a ConfigMap of the job's namespace."""

    name: Name = knob(what="The ConfigMap's name.")
    key: str = knob("recipe.py", what="Which of its files.", min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")


class RecipeBlock(SpecBlock):
    """The user's Python file: reward function, workflow, dataset, training loop. Give file or configMap."""

    file: PathText | None = knob(None, what="The recipe's path, or pvc://claim/path.")
    config_map: ConfigMapKey | None = knob(
        None, what="Cluster only: the recipe in a ConfigMap; `areal submit` makes it."
    )


class HuggingFaceDataset(SpecBlock):
    """A Hugging Face dataset: a hub name, or a folder or file on this machine."""

    path: PathText = knob(
        what="Name on the hub, a local path, pvc://claim/path, or a place in an object store: s3://bucket/rows/*.parquet."
    )
    name: Word | None = knob(None, what="The dataset's configuration, where it has several.")
    split: Word = knob("train", what="Which split.")
    revision: Word | None = knob(None, what="A commit of the hub's repository.")
    columns: dict[Word, Word] = knob(
        dict, what="Renames: {prompt: question} makes the column prompt from question.", max_length=64
    )


class ReasoningGymDataset(SpecBlock):
    """Generated items of one reasoning-gym task."""

    task: Word = knob(what="The task's name in reasoning-gym.")
    size: int = knob(what="How many items.", unit="rows", ge=1, le=10**9)
    seed: int = knob(0, what="Seed of the items.", ge=0, lt=2**63)
    config: FiniteMapping = knob(dict, what="Further arguments of the task.", max_length=64)


class RecipeDataset(SpecBlock):
    """Rows that the recipe's `dataset(split)` yields."""

    split: Word | None = knob(None, what="What `dataset` is asked for; train or evaluation by place unless given.")


class DatasetSource(SpecBlock):
    """Where rows come from. Give exactly one of the four."""

    jsonl: PathText | None = knob(
        None,
        what="A file with one JSON object a line; also s3://bucket/name, gs://, az://; on a cluster pvc://claim/path.",
    )
    hugging_face: HuggingFaceDataset | None = knob(None, what="A Hugging Face dataset.")
    reasoning_gym: ReasoningGymDataset | None = knob(None, what="A reasoning-gym task.")
    recipe: RecipeDataset | None = knob(None, what="The recipe's `dataset` function.")

    @property
    def path(self) -> str | None:
        """Of a file, or a Hugging Face dataset, where it is."""
        return self.hugging_face.path if self.hugging_face is not None else self.jsonl

    @property
    def given(self) -> list[str]:
        """Names of the sources that are given, as in the file."""
        return [name for name, value in self if value not in (None, []) and name != "weight"]


class WeightedSource(DatasetSource):
    """One of several sources of a job."""

    weight: float = knob(
        1.0, what="Its share of the prompts is its weight over the sum of all weights.", gt=0, le=10**6
    )


class TrainSource(DatasetSource):
    """Where rows to train on come from: one source, or several with weights."""

    sources: list[WeightedSource] = knob(
        list, what="Several sources instead of one; each is visited in an order of its own.", max_length=64
    )


class DifficultyPools(SpecBlock):
    """Rows are left out by the pass rate that their samples have had. Which ones changes with checkpoints only."""

    easy_from: float = knob(1.0, what="A row with at least this pass rate is easy, and left out.", gt=0, le=1)
    hard_up_to: float | None = knob(
        None, what="A row with at most this pass rate is hard, and left out; none is unless given.", ge=0, lt=1
    )
    pass_score: float = knob(1.0, what="The reward from which a sample passes.")
    min_tries: int = knob(8, what="A row is judged once it has so many new samples.", unit="samples", ge=1, le=10**6)
    revisit_epochs: int | None = knob(
        None, what="In each so many-th epoch of a source its left-out rows come back; never unless given.",
        unit="epochs", ge=2, le=10**6,
    )  # fmt: skip


class Dataset(SpecBlock):
    """What is trained on, and what is only ever measured."""

    train: TrainSource = knob(what="Rows to train on.")
    evaluation: DatasetSource | None = knob(None, what="Held-out rows; without them nothing is evaluated.")
    long_prompts: Literal["refuse", "drop"] = knob(
        "refuse", what="What becomes of training rows whose prompts leave no room for an answer: the job is refused, "
        "or they are dropped, and their number is told.",
    )  # fmt: skip
    bad_rows: Literal["refuse", "drop"] = knob(
        "refuse", what="What becomes of rows whose expected answer, or whose tests, the verifier could never use: the "
        "job is refused, or they are left out and listed in the run's dataset/badrows.jsonl.",
    )  # fmt: skip
    max_share: float = knob(
        0.05,
        what="The largest share of rows that badRows: drop may leave out; above it the job is refused.",
        ge=0,
        lt=1,
    )
    form: Literal["one", "auto"] = knob(
        "one", what="Each source's rows have the form of its first row (one), or each row a form of its own (auto)."
    )

    pools: DifficultyPools | None = knob(
        None, what="Leave out rows that the policy has learned, or can't learn yet; all rows stay unless given."
    )

    @property
    def named(self) -> dict[str, DatasetSource]:
        """Each source by its dotted field."""
        several = {f"spec.dataset.train.sources.{place}": source for place, source in enumerate(self.train.sources)}
        held_out = {} if self.evaluation is None else {"spec.dataset.evaluation": self.evaluation}
        return {**(several or {"spec.dataset.train": self.train}), **held_out}

    def replaced(self, sources: Mapping[str, DatasetSource]) -> "Dataset":
        """The same with other sources, by their dotted fields as `named` has them."""
        several = [sources[field] for field in sources if ".sources." in field]
        train = self.train.model_copy(update={"sources": several}) if several else sources["spec.dataset.train"]
        evaluation = sources.get("spec.dataset.evaluation")
        return self.model_copy(update={"train": train, "evaluation": evaluation})


class EvaluationBlock(SpecBlock):
    """Answers to held-out rows while training goes on: greedy ones, and sampled ones where asked for. Needs
    dataset.evaluation."""

    interval_steps: int = resting(10, what="Evaluate every this many versions.", unit="steps", ge=1, le=10**9)
    rows: int | None = resting(None, what="How many held-out rows; all unless given.", unit="rows", ge=1, le=10**9)
    max_concurrent: int = resting(
        64, what="Evaluation rows in flight at once, beside the training groups.", unit="rows", ge=1, le=1 << 16
    )
    at_start: bool = resting(True, what="Also evaluate the start model.")
    failed_rows: Literal["wrong", "leaveOut"] = resting(
        "wrong", what="A row without a score counts as 0, or in no mean; either way results say how many there were."
    )
    samples: int = resting(
        0, what="Sampled answers to each row beside the greedy one, for avg@n and pass@k.", unit="answers",
        ge=0, le=1024,
    )  # fmt: skip
    temperature: float = resting(1.0, what="Of the sampled answers; the rest is as in rollout.sampling.", gt=0, le=10)
    pass_at: list[int] = resting(list, what="Report pass@k for each k; for k = samples unless given.", max_length=16)
    set_column: Word | None = resting(
        None, what="A column that names the set a row belongs to; results come for each set, too."
    )
    blind: bool = resting(
        True,
        what="Of rows with images 128 at most, and of an agent's episodes 32, are answered with grey images and tools "
        "that answer nothing, too: a run that learns without them stops itself.",
    )
    one_version: bool = resting(
        False,
        what="Servers keep the evaluated version until its evaluation has ended, so every answer is of it; training "
        "waits where maxStaleness runs out. Otherwise a later version may answer, and results say which did.",
    )

    @property
    def passes(self) -> list[int]:
        """Each k of pass@k; none without samples."""
        return (self.pass_at or [self.samples]) if self.samples else []

    @property
    def figures(self) -> list[str]:
        """Names of what an evaluation comes to, of all rows and of each set."""
        return ["mean", *([f"avg@{self.samples}"] if self.samples else []), *(f"pass@{k}" for k in self.passes)]
