"""Resources, Redis' sizes and probes of each role's pods.

Owns what follows from a job: the amounts of a usual pod are in the table of roles. A platform's runtime or a job's
podTemplate writes over them; requests and limits are compared as Kubernetes writes amounts.
"""

from collections.abc import Mapping
from dataclasses import replace

from areal.errors import ConfigError
from areal.plan.cluster_names import BESIDE, GRPC_PORT, LAUNCHER_PORT, Role
from areal.plan.role_specs import PodNeeds, spec_of
from areal.spec.code_tiers import POD_LIMIT, POD_REQUEST
from areal.spec.job import RLJob
from areal.spec.quantity import amount, kubernetes_bytes
from areal.spec.runtime import Devices
from areal.spec.serving import SglangEngine

from areal_operator.operator.children.wanted import Json

_MIB = 1 << 20
_REDIS_OVERHEAD = 2.0  # maxmemory to limit: while the append-only file is rewritten, changed pages exist twice
_MAXMEMORY_OVERHEAD = 1.5  # payload budget to maxmemory, as in Redis' configuration
_REDIS_FLOOR = 64 * _MIB
_REDIS_DISK = 4  # payload budget to disk: the file doubles before it is rewritten, and the new one lies beside it
_REDIS_DISK_FLOOR = 1 << 30

CLAIM = "gpus"  # the claim's name in pods, and its one request's
PROBE_TIMEOUT_S = 5
LAUNCHER_START_S = 180  # to import Python on a loaded node with a cold page cache
LAUNCHER_SILENCE_S = 120  # a launcher that answers nothing for so long has hung; a role's hang is the launcher's to see


def needs_of(role: Role, job: RLJob) -> PodNeeds:
    """Amounts of a role in this job: who judges programs needs more than who compares answers."""
    usual = spec_of(role).needs
    assert usual is not None, f"the operator makes no pods of {role}"
    if role is not Role.REWARD or job.spec.reward.verifier != "code":
        return usual
    programs = replace(
        usual, requests={**usual.requests, "memory": POD_REQUEST}, limits={**usual.limits, "memory": POD_LIMIT}
    )
    if job.spec.reward.programs.language == "python":
        return programs
    return replace(programs, toolchains={"sizeLimit": "512Mi"})  # C++ has one header of 100 MB, Go 140 packages


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


def devices(role: Role, job: RLJob, gpu: str) -> dict[str, str]:
    """Extended resources that a role's pods ask for: GPUs, which are called `gpu` there, and network cards.

    Servers get cards, too, where weights come to their GPUs by NCCL: it takes TCP when one side has none.
    """
    rdma = job.spec.scheduling.rdma
    cards = {rdma.resource: str(rdma.count)} if rdma else {}
    if role is Role.TRAINER:
        return ({gpu: str(count)} if (count := job.spec.trainer_pod_gpus) else {}) | cards
    engine = job.spec.generation.engine
    if role is Role.GENERATION and isinstance(engine, SglangEngine) and engine.gpus:
        by_nccl = job.spec.weights_by_group and job.spec.trainer.gpus
        return {gpu: str(engine.gpus)} | (cards if by_nccl else {})
    return {}


def claimed(role: Role, job: RLJob, given: Devices) -> int:
    """GPUs that a role's pods claim of a device class; 0 where they ask a device plugin."""
    return int(devices(role, job, given.name).get(given.name, 0)) if given.device_class is not None else 0


def refuse_idle_gpus(role: Role, job: RLJob, given: Json, gpu: str) -> None:
    """Raise ConfigError when a runtime gives pods GPUs that the job has no use for: they would stand idle."""
    count = next((amounts[gpu] for amounts in given.values() if isinstance(amounts, dict) and amounts.get(gpu)), 0)
    if not count or gpu in devices(role, job, gpu):
        return
    if role is Role.GENERATION and job.spec.generation.engine.type == "embedded":
        raise ConfigError(
            f"the runtime gives generation pods {gpu}: {count}, and the embedded engine runs on CPUs only",
            fix="Set generation.engine.type: sglang, or choose a runtime for CPUs.",
        )
    field = {Role.TRAINER: "trainer.gpus", Role.GENERATION: "generation.engine.gpus"}.get(role)
    raise ConfigError(
        f"the runtime gives {role} pods {gpu}: {count}, and {f'{field} is 0' if field else 'the role uses none'}",
        fix=f"Set {field}: {count}." if field else f"Remove {gpu} from the runtime's {role} pods.",
    )


def redis_disk_bytes(budget_bytes: int, has_bytes: int) -> int:
    """Size of Redis' claim in bytes: enough for the budget, and never less than it has."""
    return max(budget_bytes * _REDIS_DISK, _REDIS_DISK_FLOOR, has_bytes)


HEALTH_SHIFT = 50  # from a server's port to that of its health without TLS: kubelets have no certificate


def probes(role: Role, *, beside: bool = False, encrypted: bool = False) -> Json:
    """Startup and liveness ask the launcher only: a role that hangs is restarted by its launcher, in place.

    Readiness asks the role, but of a gang only the first member serves: the launcher of every pod tells how its member
    is, and whether all servers `beside` it are ready. Health is the one gRPC service that needs no token, so the
    kubelet may ask.
    """
    row = spec_of(role)
    if not row.runs_on:
        return {}
    shift = HEALTH_SHIFT if encrypted else 0
    first: Json = {"grpc": {"port": LAUNCHER_PORT + shift}}
    ready = first if row.gang else {"grpc": {"port": GRPC_PORT + shift}}
    if beside:
        ready = {"grpc": {"port": LAUNCHER_PORT + shift, "service": BESIDE}}
    if not row.supervised:  # has no launcher to ask
        ready = first = {"tcpSocket": {"port": next(iter(row.pod_ports.values()))}}
    return {
        "startupProbe": {**first, **_every(2, LAUNCHER_START_S)},
        "livenessProbe": {**first, **_every(20, LAUNCHER_SILENCE_S)},
        "readinessProbe": {**ready, **_every(5, 15)},
    }


def _every(period_s: int, silence_s: int) -> Json:
    return {"periodSeconds": period_s, "failureThreshold": silence_s // period_s, "timeoutSeconds": PROBE_TIMEOUT_S}


def _mebibytes(count: int) -> str:
    return kubernetes_bytes(-(-count // _MIB) * _MIB)


def fitted(resources: Json, defaults: Json) -> Json:
    """Resources whose requests fit their limits, where one of the two is a default of ours that nobody meant to keep.

    A job that asks for more memory than our default limit means to have it, and one that sets a lower limit means that.
    Where both were given, nothing is changed: the API server names the mistake.
    """
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for name in sorted(requests.keys() & limits.keys()):
        asked, most = amount(requests[name]), amount(limits[name])
        if asked is None or most is None or asked <= most:
            continue
        if _is_default(defaults, "limits", name, limits[name]):
            limits[name] = requests[name]
        elif _is_default(defaults, "requests", name, requests[name]):
            requests[name] = limits[name]
    changed = {"requests": requests, "limits": limits}
    return {**resources, **{name: values for name, values in changed.items() if values}}


def _is_default(defaults: Mapping[str, Mapping[str, str]], kind: str, name: str, value: str) -> bool:
    return (defaults.get(kind) or {}).get(name) == value
