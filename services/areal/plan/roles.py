"""Which roles a job has, and which ports they need. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from areal.plan.resolved import Verifier
from areal.spec.job import RLJob

PortAllocator = Callable[[int], Sequence[int]]
"""Gives so many free ports."""

_PORTS = {
    "redis": ("main",),
    "generation": ("grpc", "metrics", "engine"),
    "trainer": ("grpc", "metrics", "rendezvous"),
}
_OWN_PORTS = ("grpc", "metrics")  # of every role that isn't listed above


@dataclass(frozen=True)
class RoleInstance:
    """One row to be: `generation-1` is instance 1 of role generation."""

    name: str
    role: str
    index: int

    @property
    def port_names(self) -> tuple[str, ...]:
        return _PORTS.get(self.role, _OWN_PORTS)


def role_instances(job: RLJob, verifier: Verifier | None) -> list[RoleInstance]:
    """The instances of a job's roles, in the order in which they start.

    The reward service exists when a built-in verifier is used, `reward-custom` when the recipe's function is. A gang of
    trainers is one instance: torchrun starts its processes.
    """
    spec = job.spec
    found = [RoleInstance("redis", "redis", 0)]
    if verifier is not None:
        role = "reward-custom" if verifier == "custom" else "reward"
        found.append(RoleInstance(role, role, 0))
    found.append(RoleInstance("controller", "controller", 0))
    found += [RoleInstance(f"generation-{i}", "generation", i) for i in range(spec.generation.replicas)]
    found += [RoleInstance(f"worker-{i}", "worker", i) for i in range(spec.rollout.workers)]
    found.append(RoleInstance("trainer", "trainer", 0))
    return found


def assign_ports(instances: Sequence[RoleInstance], allocate: PortAllocator) -> Mapping[str, Mapping[str, int]]:
    """A port for each thing that listens, by row and purpose."""
    wanted = [(instance.name, purpose) for instance in instances for purpose in instance.port_names]
    ports = allocate(len(wanted))
    table: dict[str, dict[str, int]] = {instance.name: {} for instance in instances}
    for (name, purpose), port in zip(wanted, ports, strict=True):
        table[name][purpose] = port
    return table
