"""This machine before a run: disk, memory and GPUs against what the job takes; Redis and packages that its roles need.

Each finding names the fix. The sandbox is asked in `areal.admit.machine`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from areal_judge import api

from areal import nvidia
from areal.admit.memory.volume import HostFacts
from areal.distribution import install
from areal.errors import ConfigError, InfraError
from areal.observe.pod_limits import pod_memory_bytes
from areal.plan import RoleHost
from areal.plan.cluster_names import SGLANG_PYTHON, Role
from areal.plan.resolved import Verifier
from areal.plan.roles import role_instances
from areal.plan.table import deal
from areal.spec import Finding, RLJob, Severity
from areal.spec.code_tiers import PROCESSES
from areal.spec.serving import SglangEngine

_REDIS_MAJOR = 7  # the scripts need Redis 7's functions of time and ACL checks
_VERSION = re.compile(r"v=(\d+)\.(\d+)")

_PACKAGES = {  # what a role imports → the extra that brings it
    "torch": "trainer",
    "transformers": "trainer",
    "fastapi": "engine",
    "uvicorn": "engine",
}


def host_facts(run_dir: Path) -> HostFacts:
    """What this machine has for a run in `run_dir`."""
    disk = next(each for each in [run_dir, *run_dir.parents] if each.exists())
    return HostFacts(pod_memory_bytes(), disk, shutil.disk_usage(disk).free, tuple(nvidia.Machine().devices()))


def preflight(job: RLJob, verifier: Verifier | None, *, alone: bool = True) -> None:
    """Raise the first thing that this machine lacks for a run of `job`, whose answers `verifier` scores.

    `alone`: all its roles run here, and so need this machine's GPUs.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"runs need Linux, this is {sys.platform}", fix="use a Linux machine, a container or a cluster"
        )
    instances = role_instances(job, verifier)
    needs_redis = any(instance.role is Role.REDIS for instance in instances)
    here = RoleHost.here(needs_redis=needs_redis)
    if needs_redis:
        check_redis(here.redis_server)
    check_environment(job)
    if alone:
        deal(job.spec, instances, here.gpus or ())
    check_packages(job, verifier)


def check_environment(job: RLJob) -> None:
    """Refuse when a variable that a cluster takes from another object isn't in the environment, its source here."""
    for role, patch in job.spec.pod_template.by_role().items():
        for variable in patch.env:
            of = variable.value_from and (variable.value_from.secret_key_ref or variable.value_from.config_map_key_ref)
            if of and not of.optional and variable.name not in os.environ:
                place = f"podTemplate.{role}.env: {variable.name} is {of.key} of {of.name} on a cluster"
                raise ConfigError(f"{place}, here of your environment, and not set", fix=f"export {variable.name}=…")


def check_redis(binary: str) -> None:
    """Refuse a Redis that is too old."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfraError(f"{binary} can't be started: {error}", fix="install Redis 7 or newer") from error
    found = _VERSION.search(said)
    if found is None or int(found[1]) < _REDIS_MAJOR:
        version = ".".join(found.groups()) if found else said.strip() or "unknown"
        raise ConfigError(
            f"{binary} is Redis {version}; the ledger needs Redis {_REDIS_MAJOR} or newer",
            fix="install a newer redis-server, or put one first on PATH",
        )


def check_packages(job: RLJob, verifier: Verifier | None) -> None:
    """Refuse when a package that a role imports is not installed."""
    is_rl = job.spec.is_rl
    needed = {name: extra for name, extra in _PACKAGES.items() if is_rl or extra == "trainer"}
    engine = job.spec.generation.engine
    if is_rl and isinstance(engine, SglangEngine) and not (engine.python or os.environ.get(SGLANG_PYTHON)):
        needed["sglang"] = "sglang (a package of its own)"
    if verifier == "math":
        needed["math_verify"] = "reward"
    missing = {name: extra for name, extra in needed.items() if importlib.util.find_spec(name) is None}
    if missing:
        extras = sorted({extra for extra in missing.values() if " " not in extra})
        fix = install(*extras) if extras else "pip install sglang"
        raise ConfigError(f"not installed here, but needed by this job: {', '.join(sorted(missing))}", fix=fix)


def unused(job: RLJob, devices: Sequence[str]) -> list[Finding]:
    """A warning where the machine shows GPUs and no process of the job is given one."""
    engine = job.spec.generation.engine
    served = job.spec.is_rl and isinstance(engine, SglangEngine) and engine.gpus
    if not devices or served or job.spec.trainer.gpus:
        return []
    field = "spec.trainer.gpus"
    message = f"this machine shows {len(devices)} GPU{'s' if len(devices) > 1 else ''}, and the job runs on CPUs"
    fix = "Set trainer.gpus, and generation.engine.type: sglang (the embedded engine runs on CPUs only)."
    return [Finding("gpus-unused", Severity.WARNING, field, message, fix, job.where(field))]


# ---- Sandbox check for a local run: `reward.code` and `rollout.boxes` against the tier that this machine reaches


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
