"""GPUs of this machine, dealt to the rows of a run: CUDA_VISIBLE_DEVICES of servers first, then of the trainer.

Owns which row sees which device on one machine; in pods a device plugin decides. A device is never dealt twice, and a
row of a job on CPUs sees none.
"""

from __future__ import annotations

from collections.abc import Sequence

from areal.errors import ConfigError
from areal.plan.cluster_names import Role
from areal.plan.roles import RoleInstance
from areal.spec.job import JobSpec
from areal.spec.serving import SglangEngine


def deal(spec: JobSpec, instances: Sequence[RoleInstance], devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The devices of each row that may use any, servers first; rows on CPUs have none.

    Raises ConfigError when the machine has fewer than the job asks for.
    """
    engine = spec.generation.engine
    by_role = {
        Role.GENERATION: engine.gpus if isinstance(engine, SglangEngine) else 0,
        Role.TRAINER: spec.trainer.gpus * spec.trainer.replicas,  # all ranks are one row here
    }
    rows = [(row.name, by_role[row.role]) for role in by_role for row in instances if row.role is role]
    wanted = sum(count for _, count in rows)
    if wanted > len(devices):
        parts = " + ".join(f"{name} {count}" for name, count in rows if count)
        raise ConfigError(
            f"the job asks for {wanted} GPUs on this machine ({parts}), and it shows {len(devices)}",
            fix="Lower trainer.gpus, generation.replicas or generation.engine.tensorParallel; 0 GPUs run on CPUs.",
        )
    dealt, first = {}, 0
    for name, count in rows:
        dealt[name] = tuple(devices[first : first + count])
        first += count
    return dealt
