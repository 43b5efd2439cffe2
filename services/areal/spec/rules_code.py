"""Rules of the verifier code: where its block may stand, which tier its programs need, what its pods have room for."""

import math

from areal.spec.code_tiers import (
    LEAST_TIER_OF_LANGUAGE,
    LEAST_TIER_OF_NEED,
    POD_LIMIT,
    PYTHON,
    bytes_of_one,
    demanding,
    level,
    slots_of_cores,
    slots_of_memory,
)
from areal.spec.job import RLJob
from areal.spec.quantity import amount, parse_bytes, show_bytes
from areal.spec.rules import Facts, rule, warning
from areal.spec.serving import CodeReward

_CODE = "self.spec.reward.code"
_TOTAL_S = CodeReward().total_seconds


def _code_of(job: RLJob) -> CodeReward | None:
    """The settings of programs, when programs are what is scored."""
    return job.spec.reward.programs if job.spec.reward.verifier == "code" else None


@rule(
    "reward.code is given only with verifier code.",
    cel=f"!has({_CODE}) || (has(self.spec.reward.verifier) && self.spec.reward.verifier == 'code')",
)
def code_without_verifier(job: RLJob, facts: Facts) -> str | None:
    reward = job.spec.reward
    if reward.code is None or reward.verifier == "code":
        return None
    who = "nobody is named who scores" if reward.verifier is None else f"verifier {reward.verifier} scores"
    return f"{who}, and only the verifier code runs programs"


@rule(
    "Without a sandbox (minTier T0) programs run only where that is allowed: allowUnsafe.",
    cel=f"!has({_CODE}) || {_CODE}.minTier != 'T0' || {_CODE}.allowUnsafe",
)
def code_unsafe(job: RLJob, facts: Facts) -> str | None:
    code = _code_of(job)
    if code is None or code.min_tier != "T0" or code.allow_unsafe:
        return None
    return "T0 is no sandbox at all: what a model writes would run with all the rights of the reward service"


@rule(
    "allowUnsafe goes with minTier T0, which it is for.",
    cel=f"!has({_CODE}) || !{_CODE}.allowUnsafe || {_CODE}.minTier == 'T0'",
)
def code_unsafe_unused(job: RLJob, facts: Facts) -> str | None:
    code = _code_of(job)
    if code is None or not code.allow_unsafe or code.min_tier == "T0":
        return None
    return f"minTier {code.min_tier} asks for a sandbox, allowUnsafe for none"


def _of_tiers(lowest: str) -> str:
    """CEL: the names of the tiers from one on, and T0."""
    return str(["T0", *(f"T{number}" for number in range(level(lowest), 5))])


def _tier_cel() -> str:
    """CEL: each language, and each need, that asks for more than pure Python has a tier that gives it."""
    by_tier: dict[str, tuple[list[str], list[str]]] = {}
    for table, place in ((LEAST_TIER_OF_LANGUAGE, 0), (LEAST_TIER_OF_NEED, 1)):
        for name, tier in table.items():
            if level(tier) > level(PYTHON):
                by_tier.setdefault(tier, ([], []))[place].append(name)
    terms = [
        f"{_CODE}.minTier in {_of_tiers(tier)} || (!({_CODE}.language in {languages}) && "
        f"(!has({_CODE}.needs) || !{_CODE}.needs.exists(n, n in {needs})))"
        for tier, (languages, needs) in by_tier.items()
    ]
    return f"!has({_CODE}) || ({' && '.join(f'({term})' for term in terms)})"


@rule("The weakest tier that a job accepts can run its language and what its programs need.", cel=_tier_cel())
def code_tier(job: RLJob, facts: Facts) -> str | None:
    code = _code_of(job)
    if code is None or code.min_tier == "T0":
        return None
    asked = demanding(code.language, tuple(code.needs))
    short = {what: tier for what, tier in asked.items() if level(tier) > level(code.min_tier)}
    if not short:
        return None
    wants = ", ".join(f"{what} ({tier})" for what, tier in short.items())
    return f"minTier {code.min_tier} has no processes, no files and no compilers, but the job has {wants}"


@rule(
    "A group has time to judge at least one program: groupDeadlineSeconds > reward.code.totalSeconds.",
    cel=(
        "!has(self.spec.reward.verifier) || self.spec.reward.verifier != 'code' || "
        f"self.spec.rollout.groupDeadlineSeconds > (has({_CODE}) ? {_CODE}.totalSeconds : {_TOTAL_S:.1f})"
    ),
)
def code_deadline(job: RLJob, facts: Facts) -> str | None:
    code, group = _code_of(job), job.spec.rollout.group_deadline_seconds
    if code is None or group > code.total_seconds:
        return None
    return f"a group ends after {group:g} s, but one program alone may take {code.total_seconds:g} s"


@warning(
    "A reward pod has memory for as many programs at once as it has processors for.",
    cel=None,  # amounts of any unit
)
def code_memory(job: RLJob, facts: Facts) -> str | None:
    code, asked = _code_of(job), job.spec.pod_template.reward.resources
    if code is None:
        return None
    cores = amount(asked.limits.get("cpu") or asked.requests.get("cpu") or 1)
    most, least = amount(asked.limits.get("memory") or 0), amount(asked.requests.get("memory") or 0)
    if cores is None or most is None or least is None:
        return None  # the API server says what is no amount
    pod_bytes = int(most) or max(int(least), parse_bytes(POD_LIMIT))
    one = bytes_of_one(code.language, code.format)
    by_cores, by_memory = slots_of_cores(math.ceil(cores)), slots_of_memory(pod_bytes, one)
    if by_memory >= by_cores:
        return None
    whose = "" if pod_bytes in (most, least) else " unless its runtime says otherwise"
    return (
        f"a reward pod has {show_bytes(pod_bytes)}{whose}, of which 80 % hold {by_memory} of the {by_cores} programs "
        f"that its processors could judge at once ({show_bytes(one)} each)"
    )
