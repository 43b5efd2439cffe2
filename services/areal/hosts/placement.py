"""Placement of a run's rows on hosts, and the addresses that follow from it. Pure, but for the plan's file.

Redis and controller are on the first host, the trainer is on the first ones: what they hold no other host has. The
other rows are spread, and may move when their host is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from areal.errors import ConfigError
from areal.plan import ResolvedJob
from areal.plan.cluster_names import Role
from areal.plan.roles import RoleInstance

ENV_HOST, ENV_RANK = "AREAL_HOST", "AREAL_HOST_RANK"
PINNED = (Role.REDIS, Role.CONTROLLER, Role.TRAINER)


@dataclass(frozen=True)
class Host:
    """One machine of an allocation, and what the allocation has of it."""

    name: str
    address: str
    port: int  # of its scheduler's daemon
    cpus: int = 1
    gpus: int = 0


@dataclass(frozen=True)
class RowPlace:
    """Where a row runs: its hosts (a gang has several), and which of the GPUs of each it sees."""

    hosts: tuple[str, ...]
    gpus: tuple[int, ...] = ()


def place(
    rows: Sequence[RoleInstance],
    hosts: Sequence[Host],
    *,
    gpus: Mapping[Role, int] | None = None,
    gang: int = 1,
    earlier: Mapping[str, RowPlace] | None = None,
) -> dict[str, RowPlace]:
    """Place of each row: where it was `earlier` if that is there still, else where the fewest rows are.

    `gpus`: how many a row of a role needs on each of its hosts; `gang`: number of the trainer's hosts. Raises
    ConfigError when these hosts can't hold all rows.
    """
    free = {host.name: list(range(host.gpus)) for host in hosts}
    load, placed = dict.fromkeys(free, 0), dict[str, RowPlace]()
    before = {name: at for name, at in (earlier or {}).items() if set(at.hosts) <= free.keys()}
    for row in sorted(rows, key=lambda row: (row.role not in PINNED, row.name not in before)):
        need = (gpus or {}).get(row.role, 0)
        count = gang if row.role is Role.TRAINER else 1
        open_ = [name for name in free if len(free[name]) >= need]
        names = list(free)[:count] if row.role in PINNED else sorted(open_, key=lambda name: load[name])[:1]
        if len(names) < count or not set(names) <= set(open_):
            fix = "ask for more nodes, or for more GPUs a node"
            raise ConfigError(
                f"{len(hosts)} hosts have no place for {row.name}: {count} with {need} free GPUs", fix=fix
            )
        there = before.get(row.name)
        if row.role in PINNED or there is None or not set(there.gpus) <= set(free[there.hosts[0]]):
            there = RowPlace(tuple(names), tuple(free[names[0]][:need]))
        placed[row.name] = there
        for name in there.hosts:
            load[name] += 1
            free[name] = [number for number in free[name] if number not in there.gpus]
    return placed


def resolve_for_hosts(resolved: ResolvedJob, placed: Mapping[str, RowPlace], hosts: Sequence[Host]) -> ResolvedJob:
    """The job with the address of each row's host in its endpoints. Ports are a row's own, and stay."""
    addresses = {host.name: host.address for host in hosts}
    at = {port: addresses[placed[row].hosts[0]] for row, ports in resolved.ports.items() for port in ports.values()}

    def moved(endpoint: str) -> str:
        scheme, slashes, rest = endpoint.rpartition("//")
        port = rest.rpartition(":")[2]
        return f"{scheme}{slashes}{at[int(port)]}:{port}" if port else endpoint

    found = resolved.endpoints.model_dump()
    found["rendezvous"] = None
    if len(placed["trainer"].hosts) > 1:
        found["rendezvous"] = f":{resolved.ports['trainer']['rendezvous']}"
    found = {key: [moved(one) for one in to] if isinstance(to, list) else to and moved(to) for key, to in found.items()}
    bind = hosts[0].address if len(set(addresses.values())) == 1 else "0.0.0.0"
    endpoints = type(resolved.endpoints).model_validate(found)
    return resolved.model_copy(update={"endpoints": endpoints, "bind": bind})


@dataclass(frozen=True)
class RayRun:
    """Ray's address, and the namespace in which a run's launchers have their names."""

    address: str
    namespace: str


@dataclass(frozen=True)
class HostPlan:
    """What each start of a row reads from a file: hosts and places by name, the command before each program."""

    hosts: Mapping[str, Host]
    rows: Mapping[str, RowPlace]
    prefix: tuple[str, ...] = ()
    ray: RayRun | None = None  # None: the hosts are Slurm's

    @classmethod
    def load(cls, path: Path) -> "HostPlan":
        """Read the file."""
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def of(self, row: str) -> list[Host]:
        """The hosts of a row."""
        return [self.hosts[name] for name in self.rows[row].hosts]
