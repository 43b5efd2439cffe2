"""The processes of a job on one machine, and a port for each thing that listens.

Free ports are found outside the range from which the kernel takes those of outgoing connections: a role may bind its
port a minute after it was chosen, and one of the ephemeral range is often taken by then.
"""

import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from areal.errors import InfraError
from areal.plan.cluster_names import Role
from areal.plan.resolved import Verifier
from areal.plan.role_specs import counts, spec_of
from areal.spec.job import RLJob

PortAllocator = Callable[[int], Sequence[int]]
"""Gives so many free ports."""


@dataclass(frozen=True)
class RoleInstance:
    """One row to be: `generation-1` is instance 1 of role generation."""

    name: str
    role: Role
    index: int


def role_instances(job: RLJob, verifier: Verifier | None) -> list[RoleInstance]:
    """The instances of a job's roles, in the order in which they start.

    A gang is one instance: torchrun starts its processes. So is a service whose replicas do the same.
    """
    found: list[RoleInstance] = []
    for role, pods in counts(job.spec, verifier).items():
        row = spec_of(role)
        here = pods if row.indexed and not row.gang else 1
        found += [RoleInstance(row.row(index), role, index) for index in range(here)]
    return found


def assign_ports(instances: Sequence[RoleInstance], allocate: PortAllocator) -> Mapping[str, Mapping[str, int]]:
    """A port for each thing that listens, by row and purpose."""
    wanted = [(instance.name, purpose) for instance in instances for purpose in spec_of(instance.role).ports]
    ports = allocate(len(wanted))
    table: dict[str, dict[str, int]] = {instance.name: {} for instance in instances}
    for (name, purpose), port in zip(wanted, ports, strict=True):
        table[name][purpose] = port
    return table


LOWEST = 10_000  # below live well-known services
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LINUX_DEFAULT = 32_768


def free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on now. All are held open until the last one is found."""
    candidates = list(range(LOWEST, max(_ephemeral_from(), LOWEST + 1_000)))
    random.shuffle(candidates)
    found: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise InfraError(f"only {len(found)} of {count} ports are free", fix="stop what listens on this machine")
    return found


def _ephemeral_from() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _LINUX_DEFAULT
