"""Property: a job that writes a checkpoint between any two faults of others never fails by their count."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from areal.plan.cluster_names import Role
from operator_stage import Stage

FAULTS = 6  # of one schedule, against a budget of none
REASONS = ("", "EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager")


def pod_taken(stage: Stage, draw: random.Random) -> str:
    """A person, a drain, the scheduler or the node's taint takes a pod of any role."""
    pod, reason = draw.choice(stage.cluster.pods()), draw.choice(REASONS)
    stage.cluster.delete_pod(pod, disrupted=reason)
    return f"{pod['metadata']['name']} is taken: {reason or 'by a person'}"


def machine_lost(stage: Stage, draw: random.Random) -> str:
    """A node's power is gone; Kubernetes notices a little later, and the node comes back later still."""
    name = draw.choice(stage.pods(Role.TRAINER))["spec"]["nodeName"]
    stage.cluster.down.add(name)
    for _ in range(draw.randrange(4)):
        stage.step(10.0)
    stage.cluster.lose_node(name)
    for _ in range(draw.randrange(12)):
        stage.step(10.0)
    stage.cluster.mend_node(name)
    return f"{name} is lost and comes back"


def operator_and_pod(stage: Stage, draw: random.Random) -> str:
    """A pod is taken while nobody looks, and another operator finds what is left."""
    told = pod_taken(stage, draw)
    for _ in range(draw.randrange(4)):
        stage.cluster.tick()
    stage.new_operator()
    return f"{told}, and the operator is replaced"


CHOICES: tuple[Callable[[Stage, random.Random], str], ...] = (pod_taken, pod_taken, machine_lost, operator_and_pod)


@pytest.mark.parametrize("seed", range(60))
def test_faults_of_others_with_a_checkpoint_between_them_fail_no_job(seed: int) -> None:
    draw = random.Random(seed)
    stage = Stage(algorithm={"maxSteps": 4000}, failurePolicy={"maxRestarts": 0})
    stage.until_training()
    told: list[str] = []
    for _ in range(FAULTS):
        told.append(draw.choice(CHOICES)(stage, draw))
        checkpoint = stage.training.checkpoint
        try:
            stage.run(lambda since=checkpoint: stage.summary == "Running" and stage.training.checkpoint > since)  # type: ignore[misc]
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {told}: {error}") from None
    assert stage.status["attempts"]["restartsCountTowardsMax"] == 0, f"seed {seed}: {told}"
    assert not any(failure["counted"] for failure in stage.status.get("failures", ())), f"seed {seed}: {told}"
    gang = sum("-trainer-" in fault for fault in told)  # a machine may be back before anybody saw it go
    assert stage.status["attempts"]["restarts"] >= gang, "each of the trainer's was a restart that could have counted"
