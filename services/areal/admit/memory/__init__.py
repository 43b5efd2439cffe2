"""Memory plan of a job: bytes a GPU and a disk need, by closed forms over the model's config.json, without torch.

Owns the order of what is told. Says nothing about a model of a family without closed forms.
"""

from collections.abc import Mapping
from typing import Any

from areal.admit.memory.advice import Said, rank_memory
from areal.admit.memory.host import pod_lines, pod_memory, pod_plans
from areal.admit.memory.shape import adapter_of, shape_of
from areal.admit.memory.volume import HostFacts, disk_memory, disk_space, running_requests, server_memory
from areal.spec import RLJob


def memory_of(
    job: RLJob,
    config: Mapping[str, Any],
    of_teacher: Mapping[str, Any] | None = None,
    *,
    parameters: int | None = None,
    host: HostFacts | None = None,
) -> Said:
    """What doesn't fit, and lines for people: a subject and a sentence each.

    Args:
        config: the model's config.json.
        of_teacher: the one of its teacher, where it has one.
        parameters: of the model, where its weights are here.
        host: this machine, where the run is to be on it.
    """
    shape = shape_of(config)
    trained = None if shape is None else adapter_of(job, shape)
    teacher = None if of_teacher is None else shape_of(of_teacher)
    findings = [] if parameters is None or host is None else disk_space(job, parameters, trained, host)
    if shape is None:
        return findings, []
    if job.spec.reward_model is not None:
        shape = shape.value_model
    disk, server = disk_memory(job, shape, trained), server_memory(job, shape)
    pods: Said = ([], pod_lines(pod_plans(job, shape, trained, teacher)))
    lines = []
    for found, said in (disk, rank_memory(job, shape, trained, teacher), pods, server):
        findings += found
        lines += said
    return findings, lines


def running_of(job: RLJob, config: Mapping[str, Any]) -> int | None:
    """Sequences that a server decodes at once by plan; None where the job says it, or nothing is planned."""
    shape = shape_of(config)
    return None if shape is None else running_requests(job, shape)


def pods_of(job: RLJob, config: Mapping[str, Any], of_teacher: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Memory that pods with GPUs ask for, bytes by role; none for a model without closed forms."""
    shape, teacher = shape_of(config), None if of_teacher is None else shape_of(of_teacher)
    return {} if shape is None else pod_memory(pod_plans(job, shape, adapter_of(job, shape), teacher))
