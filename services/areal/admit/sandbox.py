"""Sandbox check for a local run: `reward.code` and `rollout.boxes` against the tier that this machine reaches.

Owns the comparison of both with what probing finds. Runs no program of anybody's. Jobs without programs and boxes have
no findings here.
"""

from collections.abc import Callable, Iterable

from areal_judge import api

from areal.spec import Finding, RLJob, Severity
from areal.spec.code_tiers import PROCESSES

_CAPABILITY_OF_NEED = {"fork": "fork", "scratch": "scratch", "compiler": "execute"}
RULE = "code-here"


def sandbox_findings(
    job: RLJob,
    *,
    powers: api.Powers | None = None,
    toolchains: Callable[[], Iterable[api.Toolchain]] = api.find_toolchains,
) -> list[Finding]:
    """Why this machine can't judge the job's programs or run its boxes; nothing when it can.

    Args:
        powers: what the sandbox can do here; found by probing unless given (less than a second).
        toolchains: finds out about every language; asked for other languages than Python only.
    """
    code = job.spec.reward.programs
    judges, boxes = job.spec.reward.verifier == "code", job.spec.is_rl and job.spec.rollout.boxes.max_concurrent > 0
    if not judges and not boxes:
        return []
    has = api.probe(allow_unsafe=code.allow_unsafe) if powers is None else powers
    if boxes and has.tier < api.Tier[PROCESSES]:
        return [_finding(job, "spec.rollout.boxes.maxConcurrent", *api.why_not(api.Tier[PROCESSES], has))]
    if not judges:
        return []
    if has.tier < api.Tier[code.min_tier]:
        return [_finding(job, "spec.reward.code.minTier", *api.why_not(api.Tier[code.min_tier], has))]
    asked = {_CAPABILITY_OF_NEED[need]: f"spec.reward.code.needs (with {need})" for need in code.needs}
    if code.language != "python":
        asked["execute"] = "spec.reward.code.language"
    findings = [
        _finding(job, field.partition(" ")[0], *api.why_refused(capability, has))
        for capability, field in asked.items()
        if not getattr(has, capability)
    ]
    language = api.LANGUAGES[code.language]
    several = not language.as_memory or language.processes > 1
    if several and has.memory_bound is api.MemoryBound.PROCESS and not code.allow_unsafe and not findings:
        message = (
            f"programs in {code.language} are several processes or threads, and without a cgroup nothing bounds "
            "the memory of all of them together"
        )
        fix = "Delegate a cgroup with memory and pids to the reward service, or run the job under gVisor or Kata."
        findings.append(_finding(job, "spec.reward.code.language", message, fix))
    if code.language != "python" and not findings:
        missing = next(one.missing for one in toolchains() if one.language == code.language)
        if missing:
            fix = "Install it here, or run the job where the reward service's image has it."
            findings.append(_finding(job, "spec.reward.code.language", missing, fix))
    return findings


def _finding(job: RLJob, field: str, message: str, fix: str) -> Finding:
    return Finding(RULE, Severity.ERROR, field, message, fix, job.where(field))
