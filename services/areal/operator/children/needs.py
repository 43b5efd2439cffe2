"""What each role's pods need: resources, scratch space, time to end, probes.

Owns the numbers, but for the memory of programs that are judged. All are what a small job on CPUs needs; a platform's
runtime or a job's podTemplate writes over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from areal.operator.children.amounts import size
from areal.operator.children.wanted import Json
from areal.plan.cluster_names import GRPC_PORT, LAUNCHER_PORT, REDIS_PORT, Role
from areal.spec.code_room import POD_LIMIT, POD_REQUEST
from areal.spec.job import RLJob

_MIB = 1 << 20
_REDIS_OVERHEAD = 2.0  # maxmemory to limit: while the append-only file is rewritten, changed pages exist twice
_MAXMEMORY_OVERHEAD = 1.5  # payload budget to maxmemory, as in Redis' configuration
_REDIS_FLOOR = 64 * _MIB
_REDIS_DISK = 4  # payload budget to disk: the file doubles before it is rewritten, and the new one lies beside it
_REDIS_DISK_FLOOR = 1 << 30

PROBE_TIMEOUT_S = 5
LAUNCHER_START_S = 180  # to import Python on a loaded node with a cold page cache
LAUNCHER_SILENCE_S = 120  # a launcher that answers nothing for so long has hung; a role's hang is the launcher's to see


@dataclass(frozen=True)
class Needs:
    """One role. Times in seconds."""

    requests: Mapping[str, str]
    grace_s: int  # from SIGTERM to SIGKILL: what draining takes, and a margin
    limits: Mapping[str, str] = field(default_factory=dict)
    scratch: Mapping[str, str] = field(default_factory=dict)  # the emptyDir at /tmp
    toolchains: Mapping[str, str] = field(default_factory=dict)  # the emptyDir at /var/tmp, where there is one
    shared_memory: bool = False
    ready: Literal["role", "redis", "launcher", "none"] = "role"


_SANDBOX = Needs(
    requests={"cpu": "100m", "memory": "256Mi"},
    limits={"memory": "1Gi", "ephemeral-storage": "1Gi"},
    scratch={"medium": "Memory", "sizeLimit": "256Mi"},  # gone with the pod, and nothing of it reaches a disk
    grace_s=45,
)
_PROGRAMS = replace(
    _SANDBOX,
    requests={**_SANDBOX.requests, "memory": POD_REQUEST},
    limits={**_SANDBOX.limits, "memory": POD_LIMIT},
)
_COMPILERS = replace(_PROGRAMS, toolchains={"sizeLimit": "512Mi"})  # C++ has one header of 100 MB, Go 140 packages
_TOOL = Needs(requests={"cpu": "100m", "memory": "256Mi"}, grace_s=30, ready="none")

NEEDS: Mapping[Role, Needs] = {
    Role.REDIS: Needs(requests={"cpu": "100m"}, scratch={"sizeLimit": "64Mi"}, grace_s=60, ready="redis"),
    Role.CONTROLLER: Needs(
        requests={"cpu": "100m", "memory": "256Mi"},
        limits={"memory": "2Gi"},
        scratch={"sizeLimit": "256Mi"},
        grace_s=45,
    ),
    Role.WORKER: Needs(
        requests={"cpu": "250m", "memory": "512Mi"}, limits={"memory": "4Gi"}, scratch={"sizeLimit": "2Gi"}, grace_s=60
    ),
    # No memory limit for the two that hold models: only their owner knows the model's size.
    Role.GENERATION: Needs(requests={"cpu": "250m", "memory": "1Gi"}, grace_s=150, shared_memory=True),
    # Only rank 0 serves; the launcher of every pod tells how its ranks are.
    Role.TRAINER: Needs(requests={"cpu": "250m", "memory": "1Gi"}, grace_s=660, shared_memory=True, ready="launcher"),
    Role.REWARD: _SANDBOX,
    Role.REWARD_CUSTOM: _SANDBOX,
    Role.PREPARE: _TOOL,
    Role.FINISH: _TOOL,
}


def needs_of(role: Role, job: RLJob) -> Needs:
    """What a role needs in this job: who judges programs needs more than who compares answers."""
    if role is not Role.REWARD or job.spec.reward.verifier != "code":
        return NEEDS[role]
    return _PROGRAMS if job.spec.reward.programs.language == "python" else _COMPILERS


def resources(role: Role, job: RLJob) -> Json:
    """Requests and limits of a role's container."""
    needs = needs_of(role, job)
    found: Json = {"requests": dict(needs.requests)}
    if needs.limits:
        found["limits"] = dict(needs.limits)
    if role is Role.REDIS:
        maxmemory = max(int(job.spec.replay.budget_bytes * _MAXMEMORY_OVERHEAD), _REDIS_FLOOR)
        found["requests"]["memory"] = _mebibytes(maxmemory // 4 + _REDIS_FLOOR)  # it fills only when training stops
        found["limits"] = {"memory": _mebibytes(int(maxmemory * _REDIS_OVERHEAD) + _REDIS_FLOOR)}
    return found


def redis_disk_bytes(budget_bytes: int, has_bytes: int) -> int:
    """What Redis' claim asks for: enough for the budget, and never less than it has."""
    return max(budget_bytes * _REDIS_DISK, _REDIS_DISK_FLOOR, has_bytes)


def probes(role: Role) -> Json:
    """Startup and liveness ask the launcher only: a role that hangs is restarted by its launcher, in place.

    Readiness asks the role. Health is the one gRPC service that needs no token, so the kubelet may ask.
    """
    asked = NEEDS[role].ready
    if asked == "none":
        return {}
    first: Json = {"grpc": {"port": LAUNCHER_PORT}}
    ready = first
    if asked == "role":
        ready = {"grpc": {"port": GRPC_PORT}}
    elif asked == "redis":  # has no launcher
        ready = first = {"tcpSocket": {"port": REDIS_PORT}}
    return {
        "startupProbe": {**first, **_every(2, LAUNCHER_START_S)},
        "livenessProbe": {**first, **_every(20, LAUNCHER_SILENCE_S)},
        "readinessProbe": {**ready, **_every(5, 15)},
    }


def _every(period_s: int, silence_s: int) -> Json:
    return {
        "periodSeconds": period_s,
        "failureThreshold": silence_s // period_s,
        "timeoutSeconds": PROBE_TIMEOUT_S,
    }


def _mebibytes(count: int) -> str:
    return size(-(-count // _MIB) * _MIB)
