"""Rows of a run: command, environment, probe and life of each process, made from the table of roles.

A pure function of the resolved job and the place. On one machine the whole table becomes processes; in a pod one row
does, with the same command and in the same way. GPUs of one machine are dealt here (CUDA_VISIBLE_DEVICES of servers
first, then of the trainer), none twice; in pods a device plugin decides.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from areal.errors import ConfigError
from areal.nvidia import VISIBLE, Machine
from areal.plan.cluster_names import KERNELS_DIR, SCRATCH_DIR, Role
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import RoleProgram, long_running, spec_of
from areal.plan.roles import RoleInstance, role_instances
from areal.spec.job import JobSpec
from areal.spec.serving import SglangEngine

_AREAL_ROLE = (sys.executable, "-m", "areal.processes.role")  # by this interpreter, whatever is on PATH


@dataclass(frozen=True)
class RoleHost:
    """What rows need to know about where they run."""

    python: str
    areal_role: tuple[str, ...]  # how `areal-role` is called
    redis_server: str
    host: str = "127.0.0.1"
    interface: str = "lo"  # that trainer processes talk over; empty lets them choose
    scratch: Path | None = None  # where libraries may keep caches; the user's home unless given
    job_file: Path | None = None  # the resolved job; that of the run directory unless given
    gpus: tuple[str, ...] | None = ()  # of this machine; in pods a device plugin deals them. None: so does another

    @classmethod
    def here(cls, *, needs_redis: bool = True) -> "RoleHost":
        """This machine, with this interpreter. Raises ConfigError without a Redis server where one is needed."""
        redis = shutil.which("redis-server") or ("" if not needs_redis else None)
        if redis is None:
            raise ConfigError(
                "there is no redis-server on PATH, and a run keeps its ledger in Redis",
                fix="Install Redis 7 or newer: `apt-get install redis-server`, or run `make setup`.",
            )
        return cls(sys.executable, _AREAL_ROLE, redis, gpus=Machine().devices())

    @classmethod
    def pod(cls, job_file: Path, *, interface: str = "", scratch: Path = Path(SCRATCH_DIR)) -> "RoleHost":
        """A container. Its GPUs are dealt to rows only where several have them by turns."""
        gpus = Machine().devices()
        return cls(sys.executable, _AREAL_ROLE, "redis-server", "127.0.0.1", interface, scratch, job_file, gpus)


@dataclass(frozen=True)
class RoleRow:
    """One process to run. Times in seconds."""

    name: str
    role: Role
    index: int
    command: list[str]
    env: Mapping[str, str]
    ports: Mapping[str, int]
    depends_on: list[str]  # rows that must be ready before this one starts
    ready: Literal["grpc", "tcp", "none"]  # how readiness is asked, on ports grpc or main
    drain_s: float  # from SIGTERM to SIGKILL
    start_deadline_s: float  # from start to ready
    restart: Literal["in_place", "epoch"]  # who restarts it: its launcher at once, or whoever owns the gang's epoch
    max_restarts: int
    first_start: Literal["at_once", "epoch"] = "at_once"  # a gang of several pods begins together
    probe_host: str = "127.0.0.1"  # where its readiness is asked
    bind: str = "127.0.0.1"  # the address that its servers listen on
    held: tuple[str, ...] = ()  # ports on which its launcher listens for it
    standby: bool = False  # its launcher keeps a second process that has done its imports


_MAX_RESTARTS = 10

_ANYWHERE = ("0.0.0.0", "::")  # bound to these, a server is on loopback, too


def role_table(resolved: ResolvedJob, place: RoleHost | None = None) -> list[RoleRow]:
    """The rows of a run on one machine in dependency order; `place` defaults to this machine.

    Raises ConfigError when the job asks for more GPUs than the machine shows.
    """
    where = RoleHost.here(needs_redis=resolved.endpoints.redis is not None) if place is None else place
    instances = role_instances(resolved.job, resolved.verifier)
    dealt = {} if where.gpus is None else deal(resolved.spec, instances, where.gpus)
    seen = {name: {VISIBLE: ",".join(devices)} for name, devices in dealt.items()} if where.gpus else {}
    by_role: dict[Role, list[str]] = {}
    for instance in instances:
        by_role.setdefault(instance.role, []).append(instance.name)
    rows = [(instance, _row(resolved, instance, where)) for instance in instances]
    return [
        replace(
            row,
            env={**row.env, **seen.get(row.name, {})},
            depends_on=[name for role in spec_of(instance.role).depends_on for name in by_role.get(role, ())],
        )
        for instance, row in rows
    ]


def pod_rows(resolved: ResolvedJob, role: str, index: int, place: RoleHost) -> list[RoleRow]:
    """The rows of one pod: its role's, and in a trainer's those of the servers that have its devices by turns.

    Raises ConfigError for a role that has no row, and where the pod sees fewer GPUs than the rows have.
    """
    first = role_row(resolved, role, index, place)
    if first.role is not Role.TRAINER or not resolved.in_one_pod:
        return [first]
    servers = [role_row(resolved, Role.GENERATION, at, place) for at in range(resolved.spec.generation.replicas)]
    rows = [*servers, first]
    dealt = deal(resolved.spec, [RoleInstance(row.name, row.role, row.index) for row in rows], place.gpus or ())
    return [
        replace(row, env={**row.env, **({VISIBLE: ",".join(dealt[row.name])} if dealt[row.name] else {})})
        for row in (first, *servers)
    ]


def role_row(resolved: ResolvedJob, role: str, index: int, place: RoleHost) -> RoleRow:
    """The row of one pod. It depends on nothing: what a role needs it waits for, for as long as the job's patience.

    Raises ConfigError for a role that has no row.
    """
    known = next((one for one in long_running() if one == role), None)
    if known is None:
        raise ConfigError(f"there is no role {role!r}", fix=f"name one of: {', '.join(long_running())}")
    if role not in resolved.ports and f"{role}-{index}" not in resolved.ports:
        raise ConfigError(f"the job has no role {role!r}", fix=f"name one of: {', '.join(resolved.ports)}")
    spec = spec_of(known)
    row = _row(resolved, RoleInstance(spec.member(index), known, index), place)
    return replace(
        row,
        start_deadline_s=max(row.start_deadline_s, resolved.patience_s),
        drain_s=row.drain_s if spec.pod_drain_s is None else spec.pod_drain_s,
        # only the first rank serves; the others' death shows in their launchers, their hanging in the first one's
        ready="none" if spec.gang and index > 0 else row.ready,
        first_start="epoch" if spec.gang else "at_once",
    )


def _row(resolved: ResolvedJob, instance: RoleInstance, place: RoleHost) -> RoleRow:
    spec = spec_of(instance.role)
    return RoleRow(
        name=instance.name,
        role=instance.role,
        index=instance.index,
        command=_command(resolved, instance, place),
        env=_environment(resolved, instance, place),
        ports=dict(resolved.ports_of(instance.role, instance.index)),
        depends_on=[],
        ready=spec.readiness,
        drain_s=spec.drain_s,
        start_deadline_s=_start_s(resolved, instance.role),
        restart="epoch" if spec.gang else "in_place",
        max_restarts=_MAX_RESTARTS,
        probe_host="127.0.0.1" if resolved.bind in _ANYWHERE else resolved.bind,
        bind=resolved.bind,
        held=spec.held,
        standby=spec.program is RoleProgram.TORCHRUN and _one_rank(resolved) and resolved.spec.trainer.standby,
    )


def _one_rank(resolved: ResolvedJob) -> bool:
    """Whether torchrun starts one process: all ranks on one machine, in pods a node's."""
    trainer = resolved.spec.trainer
    return (trainer.proc_per_node if resolved.endpoints.rendezvous is not None else trainer.world_size) == 1


def _start_s(resolved: ResolvedJob, role: Role) -> float:
    """Seconds from a start to ready. A server's agent gives its engine up first: it knows why."""
    engine = resolved.spec.generation.engine
    if role is Role.GENERATION and isinstance(engine, SglangEngine):
        return engine.start_s + 60.0
    if role is Role.TRAINER and resolved.spec.shared_cards:  # a restarted one waits until the servers' turn is over
        return spec_of(role).start_s + resolved.spec.groups_patience_s
    return spec_of(role).start_s


def _command(resolved: ResolvedJob, instance: RoleInstance, place: RoleHost) -> list[str]:
    ports = resolved.ports_of(instance.role, instance.index)
    program = spec_of(instance.role).program
    if program is RoleProgram.REDIS:
        return [place.redis_server, str(resolved.layout.redis_conf)]
    listen = ["--port", str(ports["grpc"]), "--metrics-port", str(ports["metrics"])]
    job = ["--job", str(place.job_file or resolved.layout.resolved)]
    if program is RoleProgram.TORCHRUN:
        gang = [*_gang(resolved, instance, place), "-m", "areal_trainer.main", *job, *listen]
        return [place.python, "-m", "areal_trainer.torchrun", *gang]
    command = [*place.areal_role, instance.role, *job, "--index", str(instance.index), *listen]
    return [*command, "--engine-port", str(ports["engine"])] if "engine" in ports else command


def _gang(resolved: ResolvedJob, instance: RoleInstance, place: RoleHost) -> list[str]:
    """The arguments of torchrun: all ranks here, or this pod's among several pods'."""
    trainer = resolved.spec.trainer
    if resolved.endpoints.rendezvous is None:
        port = resolved.ports_of(instance.role, 0)["rendezvous"]
        gang = ["--nnodes", "1", "--nproc-per-node", str(trainer.world_size), "--max-restarts", "0"]
        return [*gang, "--master-addr", place.host, "--master-port", str(port)]
    host, _, meet = resolved.endpoints.rendezvous.rpartition(":")
    gang = ["--nnodes", str(trainer.replicas), "--nproc-per-node", str(trainer.proc_per_node), "--max-restarts", "0"]
    gang += ["--node-rank", str(instance.index), "--rdzv-id", resolved.uid]
    return [*gang, "--master-addr", host, "--master-port", meet]


def _environment(resolved: ResolvedJob, instance: RoleInstance, place: RoleHost) -> dict[str, str]:
    environment = {
        "AREAL_JOB": resolved.name,
        "AREAL_ROLE": instance.role,
        "AREAL_INDEX": str(instance.index),
        "AREAL_RUN_DIR": str(resolved.run_dir),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # several processes share the cores; more threads each is slower
        "TOKENIZERS_PARALLELISM": "false",
    }
    if spec_of(instance.role).gang and place.interface:
        environment["GLOO_SOCKET_IFNAME"] = place.interface
    if spec_of(instance.role).gang and resolved.spec.trainer.gpus and not resolved.spec.shared_cards:
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # rows of any length leave few holes
    if resolved.namespace is not None:
        environment["AREAL_NAMESPACE"] = resolved.namespace
    if place.scratch is None:
        return environment
    environment |= caches(place.scratch)
    if not spec_of(instance.role).holds_model:
        return environment
    kept = resolved.spec.storage.cache_claim_name is not None
    return environment | kernel_caches(Path(KERNELS_DIR) if kept else place.scratch / "kernels")


def kernel_caches(place: Path) -> dict[str, str]:
    """Caches of compilers of kernels, so that the next pod needn't make again what they made."""
    return {
        "TRITON_CACHE_DIR": str(place / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "FLASHINFER_WORKSPACE_BASE": str(place / "flashinfer"),
        "CUDA_CACHE_PATH": str(place / "cuda"),
        "SGLANG_CACHE_DIR": str(place / "sglang"),
        "SGLANG_JIT_CACHE_DIR": str(place / "sglang" / "jit"),  # its default is below HOME, whatever the other says
    }


def caches(scratch: Path) -> dict[str, str]:
    """Caches of libraries, for a user without a home on a disk that can't be written."""
    return {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "HF_HOME": str(scratch / "huggingface"),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
        "TRITON_HOME": str(scratch),  # .triton below it
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),  # its own default asks for the user's name
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def deal(spec: JobSpec, instances: Sequence[RoleInstance], devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The devices of each row that may use any, servers first or, where they share them, the same ones as the trainer;
    rows on CPUs have none.

    Raises ConfigError when the machine has fewer than the job asks for.
    """
    engine = spec.generation.engine
    by_role = {
        Role.GENERATION: engine.gpus if isinstance(engine, SglangEngine) else 0,
        Role.TRAINER: spec.trainer.gpus * spec.trainer.replicas,  # all ranks are one row here
    }
    rows = {role: [(row.name, count) for row in instances if row.role is role] for role, count in by_role.items()}
    totals = [sum(count for _, count in of_role) for of_role in rows.values()]
    shared = spec.shared_cards
    wanted = max(totals) if shared else sum(totals)
    if wanted > len(devices):
        alike = not shared and min(totals) > 0 and max(totals) <= len(devices) and spec.trainer.replicas == 1
        older = " and algorithm.maxStaleness: 1" if spec.algorithm.max_staleness > 1 else ""
        parts = (" or " if shared else " + ").join(
            f"{name} {count}" for of_role in rows.values() for name, count in of_role if count
        )
        raise ConfigError(
            f"the job asks for {wanted} GPUs on this machine ({parts}), and it shows {len(devices)}",
            fix=(
                f"Set placement: shared{older}, so that servers and trainer have them by turns; or lower"
                if alike
                else "Lower"
            )
            + " trainer.gpus, generation.replicas or generation.engine.tensorParallel; 0 GPUs run on CPUs.",
        )
    dealt, first = {}, 0
    for of_role in rows.values():
        first = 0 if shared else first
        for name, count in of_role:
            dealt[name] = tuple(devices[first : first + count])
            first += count
    return dealt
