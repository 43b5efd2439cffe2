"""Rules of SGLang's arguments: flags of its server by their effect on a run.

The table, `sglang_flags.yaml`, is of SGLang 0.5.23, by pattern; the first that fits counts. A flag that fits none is
unknown.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from fnmatch import fnmatchcase

from areal.spec.job import RLJob
from areal.spec.rules import Facts, rule, warning
from areal.spec.serving import SglangEngine
from areal.yaml_file.table import read_table

VERSION = "0.5.23"
_AGENT_OWNS = (  # flags of SGLang's server that the agent sets itself
    "--model-path", "--model", "--tokenizer-path", "--host", "--port", "--dtype", "--tp", "--tp-size",
    "--tensor-parallel-size", "--api-key", "--admin-api-key", "--max-running-requests", "--skip-tokenizer-init",
    "--weight-version", "--stream-interval", "--enable-return-routed-experts",
)  # fmt: skip


class Effect(Enum):
    """The effect of a flag on what is trained."""

    HARMLESS = "logs, limits, metrics or memory"
    NUMBERS = "log-probabilities differ from the trainer's in the last digits"
    COARSE = "log-probabilities differ from the trainer's by more than rounding"
    REFUSED = "not with versions that change in the middle of a run"


@dataclass(frozen=True)
class FlagKind:
    """Flags of one effect and, where they are refused, the reason."""

    effect: Effect
    patterns: tuple[str, ...]
    reason: str = ""


def _kind(effect: Effect, patterns: str, reason: str = "") -> FlagKind:
    return FlagKind(effect, tuple(patterns.split()), reason)


_FLAGS = read_table("areal.spec", "sglang_flags.yaml")
_KINDS = (
    *(_kind(Effect.REFUSED, patterns, reason) for reason, patterns in _FLAGS["refused"].items()),
    *(_kind(effect, _FLAGS[effect.name.lower()]) for effect in (Effect.COARSE, Effect.NUMBERS, Effect.HARMLESS)),
)


def kind_of(flag: str) -> FlagKind | None:
    """The kind of a flag that is written whole (`--page-size`); None for one that SGLang doesn't have."""
    positive = f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag
    return next((kind for kind in _KINDS if any(fnmatchcase(positive, each) for each in kind.patterns)), None)


def flags_of(job: RLJob) -> list[str]:
    """The flags that a job gives SGLang, without their values."""
    engine = job.spec.generation.engine
    if not isinstance(engine, SglangEngine):
        return []
    words = [argument.partition("=")[0] for argument in engine.extra_args]
    return [word for word in words if word.startswith("-") and not word.lstrip("-").replace(".", "").isdecimal()]


@rule(
    "extraArgs leaves alone what the agent sets.",
    cel=(
        "self.spec.generation.engine.type != 'sglang' || !has(self.spec.generation.engine.extraArgs) || "
        f"self.spec.generation.engine.extraArgs.all(a, !(a.split('=')[0] in {list(_AGENT_OWNS)}))"
    ),
)
def sglang_arguments(job: RLJob, facts: Facts) -> str | None:
    taken = [flag for flag in flags_of(job) if flag in _AGENT_OWNS]
    return f"{', '.join(taken)} is set by the generation agent" if taken else None


@rule("With the flags in extraArgs tokens, versions and log-probabilities are what the run takes them for.")
def sglang_unsupported(job: RLJob, facts: Facts) -> str | None:
    kinds = {flag: kind_of(flag) for flag in flags_of(job) if flag not in _AGENT_OWNS}
    refused = [f"{flag}: {kind.reason}" for flag, kind in kinds.items() if kind and kind.effect is Effect.REFUSED]
    return "; ".join(refused) or None


def _unknown(job: RLJob) -> str | None:
    known = [each for kind in _KINDS for each in kind.patterns if "*" not in each]
    for flag in flags_of(job):
        if flag not in _AGENT_OWNS and kind_of(flag) is None:
            close = get_close_matches(flag, known, n=1) or [each for each in known if each.startswith(flag)][:1]
            hint = f"; did you mean {close[0]}?" if close else ""
            return f"SGLang {VERSION} has no flag {flag} (a flag must be written whole){hint}"
    return None


@rule(f"Every flag in extraArgs is one of SGLang {VERSION}.")
def sglang_unknown(job: RLJob, facts: Facts) -> str | None:
    engine = job.spec.generation.engine
    return None if isinstance(engine, SglangEngine) and engine.python else _unknown(job)


@warning("Flags of another SGLang are known.")
def sglang_own_flags(job: RLJob, facts: Facts) -> str | None:
    engine = job.spec.generation.engine
    return _unknown(job) if isinstance(engine, SglangEngine) and engine.python else None


@rule("Tokens of a quantised engine are trained with truncated weights.")
def sglang_coarse(job: RLJob, facts: Facts) -> str | None:
    coarse = [flag for flag in flags_of(job) if (kind := kind_of(flag)) and kind.effect is Effect.COARSE]
    if not coarse or job.spec.algorithm.advanced.truncate is not None:
        return None
    return f"with {', '.join(coarse)} the engine samples from other probabilities than the trainer's, beyond rounding"
