"""The `generation` and `reward` blocks: generation servers and reward services."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, field_validator

from areal.spec.block import Mutability, SpecBlock, knob, resting
from areal.spec.code_tiers import Language, Need, SuiteFormat, TierName
from areal.spec.quantity import Bytes
from areal.spec.text import AbsolutePath, Argument, PathText, Word

DEFAULT_CACHE_BYTES = 2 << 30
COMPILE_S = 20.0  # Longest time for the compilation of a program


_DTYPE = "Precision of the served weights; bfloat16 on GPUs, and the trainer's where that has GPUs, unless given."


RUNNING_REQUESTS = 128
START_S = 600.0  # large models load for minutes
COLD_START_S = 1800.0  # a dozen kernels at one core, each a minute, then CUDA graphs


class EmbeddedEngineBlock(SpecBlock):
    """The engine of this project: torch on CPU, for small models; needs nothing installed."""

    union_key = "type"

    type: Literal["embedded"] = knob("embedded", what="The engine.")
    max_running_requests: int = resting(
        RUNNING_REQUESTS, what="Sequences decoded at once.", unit="sequences", ge=1, le=1 << 20, server_default=False
    )
    dtype: Literal["float32", "bfloat16"] = knob("float32", what=_DTYPE, server_default=False)
    cache_memory: Bytes = resting(
        DEFAULT_CACHE_BYTES, what="Memory for keys and values of the sequences in work, beside the weights; what "
        "doesn't fit waits. One whole context fits always.",
        unit="bytes", ge=1 << 20, le=1 << 50,
    )  # fmt: skip

    @property
    def running_requests(self) -> int:
        """Sequences decoded at once."""
        return self.max_running_requests


class SglangEngine(SpecBlock):
    """SGLang, which must be installed beside the agent."""

    union_key = "type"

    type: Literal["sglang"] = knob(what="The engine.")
    max_running_requests: int | None = resting(
        None, what="Sequences decoded at once; unless given as many samples of half the longest length as the plan of "
        "a GPU has room for, 512 at most, and 128 where nothing is planned.",
        unit="sequences", ge=1, le=1 << 20,
    )  # fmt: skip
    dtype: Literal["float32", "bfloat16"] = knob("float32", what=_DTYPE, server_default=False)
    tensor_parallel: int = resting(1, what="Parts that a server's model is split into, one a GPU.", ge=1, le=1024)
    gpus: int = resting(
        0, what="GPUs of one server, as many as tensorParallel, and so many unless given where the trainer has GPUs; "
        "0 serves on CPUs.",
        server_default=False, ge=0, le=1024,
    )  # fmt: skip
    context_length: int | None = resting(
        None, what="Longest prompt and answer together; the model's own unless given.", unit="tokens", ge=1, le=1 << 24
    )
    mem_fraction: float | None = resting(
        None, what="Share of a GPU's memory for weights and cache; SGLang chooses unless given.", gt=0, lt=1
    )
    python: AbsolutePath | None = resting(
        None, what="The Python that has SGLang, an absolute path; the agent's own unless given."
    )
    extra_args: list[Argument] = resting(list, what="More arguments of SGLang's server.", max_length=64)

    @property
    def running_requests(self) -> int:
        """Sequences decoded at once."""
        return self.max_running_requests or RUNNING_REQUESTS

    @property
    def start_s(self) -> float:
        """Seconds from a start to the first answer, at most: on GPUs a first start compiles kernels."""
        return COLD_START_S if self.gpus else START_S


def _engine_type(value: Any) -> str:
    if isinstance(value, EmbeddedEngineBlock | SglangEngine):
        return value.type
    named = value.get("type") if isinstance(value, dict) else None
    return "embedded" if named is None else str(named)


Engine = Annotated[
    Annotated[EmbeddedEngineBlock, Tag("embedded")] | Annotated[SglangEngine, Tag("sglang")],
    Discriminator(_engine_type),
]


class ElasticFleet(SpecBlock):
    """Bounds of a fleet whose size follows the trainer."""

    min_replicas: int = knob(1, what="The fewest servers.", cluster=Mutability.LIVE, ge=1, le=1024)
    max_replicas: int = knob(what="The most servers.", cluster=Mutability.LIVE, ge=1, le=1024)
    window_seconds: float = resting(
        300, what="A fleet is watched so long, and for three steps, before its size is judged.", unit="seconds",
        cluster=Mutability.LIVE, ge=10, le=86400,
    )  # fmt: skip


class GenerationBlock(SpecBlock):
    """The fleet of generation servers: an agent and an engine each."""

    engine: Engine = knob(EmbeddedEngineBlock, what="Which engine serves.")
    replicas: int = knob(
        1, what="Generation servers.", change=Mutability.RESUME, cluster=Mutability.LIVE, ge=1, le=1024
    )
    elastic: ElasticFleet | None = knob(
        None, what="Cluster only: servers are added while training waits for samples, and taken away while generation "
        "is as far ahead as it may be; replicas is what the fleet begins with.",
        cluster=Mutability.LIVE,
    )  # fmt: skip
    stream_interval: int = resting(
        16, what="Tokens between two messages of a stream; what a dying server can lose, and beside SGLang all that a "
        "running answer got since a swap.",
        unit="tokens",
        ge=1, le=1 << 20,
    )  # fmt: skip


class CodeReward(SpecBlock):
    """How programs are judged: for the verifier code only."""

    language: Language = knob("python", what="What the answers are written in.")
    format: SuiteFormat = knob("auto", what="How a row holds its tests; auto finds out by its columns.")
    min_tier: TierName = resting(
        "T2",
        what="The weakest sandbox that may run the answers; T0, which is none, only on this machine with allowUnsafe.",
    )
    allow_unsafe: bool = resting(False, what="Not on a cluster: let answers run without a sandbox where minTier is T0.")
    scoring: Literal["all_pass", "fraction"] = knob(
        "all_pass", what="all_pass gives 1 or 0 and stops at the first failed case; fraction gives the passed share."
    )
    total_seconds: float = resting(
        20.0, what="Longest time for all cases of an answer together.", unit="seconds", gt=0, le=3600
    )
    isolate_cases: bool = resting(False, what="A fresh process for each case of a function, too.")
    needs: list[Need] = resting(
        list, what="What the answers must be able to do: fork, scratch (write files), compiler.", max_length=3
    )

    @field_validator("min_tier", mode="before")
    @classmethod
    def _known_tier(cls, value: Any) -> Any:
        """The number between T0 and T2 names no sandbox."""
        if value == "T1":
            raise ValueError("there is no tier T1: use T2, the weakest sandbox")
        return value


class ModelReward(SpecBlock):
    """The reward model that scores: for the verifier model only."""

    path: PathText = knob(
        what="A Hugging Face directory: a sequence-classification model with one label, or hf://owner/name@revision. "
        "On a cluster pvc://claim/path, or a path in the image; `areal submit` takes a directory of yours along."
    )
    max_tokens: int | None = knob(
        None, what="Longest prompt and answer together, the model's context unless given; of a longer one the first "
        "tokens are scored.",
        unit="tokens", ge=2, le=1 << 24,
    )  # fmt: skip
    chat_template: bool | None = knob(
        None, what="Apply its tokenizer's chat template to prompts that are plain text; unless given, if there is one."
    )


class Reward(SpecBlock):
    """Who scores an answer."""

    replicas: int = knob(
        1,
        what="Reward pods on a cluster; one process here.",
        change=Mutability.RESUME,
        cluster=Mutability.LIVE,
        ge=1,
        le=1024,
    )
    verifier: Literal["exact", "math", "code", "model", "custom"] | None = knob(
        None,
        what="Built in: exact, math, code, model; custom is the recipe's `reward`, and the default when it has one.",
    )
    deadline_seconds: float = resting(10.0, what="Longest time for one score.", unit="seconds", gt=0, le=10**8)
    answer_field: Word = knob("answer", what="The column of the expected answer, for exact and math.")
    gold_rounds: bool = knob(
        False, what="For verifier math: an expected decimal also stands for what it rounds or cuts, 33.3 for 100/3."
    )
    weights: dict[str, float] | None = knob(
        None,
        what="How much each part counts of a recipe's reward that returns parts by name; parts that are not named here "
        "are only recorded. Unless given, the reward is the sum of all.",
        max_length=32,
    )
    code: CodeReward | None = knob(None, what="How programs are judged, for verifier code; its defaults unless given.")
    model: ModelReward | None = knob(None, what="Which reward model scores, for verifier model.")

    @property
    def programs(self) -> CodeReward:
        """How programs are judged, whether the job says it or leaves it to the defaults."""
        return CodeReward() if self.code is None else self.code

    @property
    def longest_score_s(self) -> float:
        """How long one score may take, in seconds: of a program that is compiled first, both stages together."""
        if self.verifier != "code":
            return self.deadline_seconds
        return max(self.deadline_seconds, self.programs.total_seconds + COMPILE_S)
