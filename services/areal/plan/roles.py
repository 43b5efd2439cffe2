"""The processes of a job on one machine, and a port for each thing that listens. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
