"""The role table: how each process of a run starts, what it waits for, how it is asked and ended.

A pure function of the resolved job and the place. Locally a row becomes a process, on a cluster a pod; what differs
between the two is in `Place`, nothing else.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from areal.errors import ConfigError
from areal.plan.resolved import ResolvedJob
from areal.plan.roles import RoleInstance, role_instances


@dataclass(frozen=True)
class Place:
    """What rows need to know about where they run."""

    python: str
    areal_role: tuple[str, ...]  # how `areal-role` is called
    redis_server: str
    host: str = "127.0.0.1"
    interface: str = "lo"  # that trainer processes talk over

    @classmethod
    def here(cls) -> Place:
        """This machine, with this interpreter. Raises ConfigError without a Redis server."""
        redis = shutil.which("redis-server")
        if redis is None:
            raise ConfigError(
                "there is no redis-server on PATH, and a run keeps its ledger in Redis",
                fix="Install Redis 7 or newer: `apt-get install redis-server`, or run `make setup`.",
            )
        script = Path(sys.executable).with_name("areal-role")
        role = (sys.executable, str(script)) if script.exists() else (sys.executable, "-m", "areal.launch.role")
        return cls(sys.executable, role, redis)


@dataclass(frozen=True)
class RoleRow:
    """One process to run. Times in seconds."""

    name: str
    role: str
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


@dataclass(frozen=True)
class _Life:
    """How long a role may take to start and to end."""

    start_deadline_s: float
    drain_s: float
    depends_on: tuple[str, ...] = field(default=())


_LIVES = {
    "redis": _Life(30, 10),
    "reward": _Life(60, 10),
    "reward-custom": _Life(60, 10),
    "controller": _Life(60, 10, ("redis",)),
    "generation": _Life(600, 15),  # large models load for minutes; it dials the controller when that is there
    "worker": _Life(60, 15, ("controller", "reward", "reward-custom")),
    "trainer": _Life(600, 60, ("redis", "controller")),  # draining ends with a checkpoint
}

_MAX_RESTARTS = 10


def role_table(resolved: ResolvedJob, place: Place | None = None) -> list[RoleRow]:
    """The rows of a run in dependency order; `place` defaults to this machine."""
    where = Place.here() if place is None else place
    instances = role_instances(resolved.job, resolved.verifier)
    by_role: dict[str, list[str]] = {}
    for instance in instances:
        by_role.setdefault(instance.role, []).append(instance.name)
    rows = []
    for instance in instances:
        life = _LIVES[instance.role]
        rows.append(
            RoleRow(
                name=instance.name,
                role=instance.role,
                index=instance.index,
                command=_command(resolved, instance, where),
                env=_environment(resolved, instance, where),
                ports=dict(resolved.ports[instance.name]),
                depends_on=[name for role in life.depends_on for name in by_role.get(role, ())],
                ready="tcp" if instance.role == "redis" else "grpc",
                drain_s=life.drain_s,
                start_deadline_s=life.start_deadline_s,
                restart="epoch" if instance.role == "trainer" else "in_place",
                max_restarts=_MAX_RESTARTS,
            )
        )
    return rows


def _command(resolved: ResolvedJob, instance: RoleInstance, place: Place) -> list[str]:
    ports = resolved.ports[instance.name]
    if instance.role == "redis":
        return [place.redis_server, str(resolved.layout.redis_conf)]
    listen = ["--port", str(ports["grpc"]), "--metrics-port", str(ports["metrics"])]
    job = ["--job", str(resolved.layout.resolved)]
    if instance.role == "trainer":
        gang = ["--nnodes", "1", "--nproc-per-node", str(resolved.job.spec.trainer.world_size), "--max-restarts", "0"]
        gang += ["--master-addr", place.host, "--master-port", str(ports["rendezvous"])]
        return [place.python, "-m", "areal_trainer.torchrun", *gang, "-m", "areal_trainer.main", *job, *listen]
    command = [*place.areal_role, instance.role, *job, "--index", str(instance.index), *listen]
    return [*command, "--engine-port", str(ports["engine"])] if instance.role == "generation" else command


def _environment(resolved: ResolvedJob, instance: RoleInstance, place: Place) -> dict[str, str]:
    environment = {
        "AREAL_JOB": resolved.name,
        "AREAL_ROLE": instance.role,
        "AREAL_INDEX": str(instance.index),
        "AREAL_RUN_DIR": str(resolved.run_dir),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # several processes share the cores; more threads each is slower
        "TOKENIZERS_PARALLELISM": "false",
    }
    if instance.role == "trainer":
        environment["GLOO_SOCKET_IFNAME"] = place.interface
    return environment
