"""A gang of two pods: they begin together, one's death ends both, and both go on in the next epoch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from areal.errors import ExitCode
from areal.ledger import evidence
from areal.plan.roles import free_ports
from areal.processes.core import ChildPhase
from support.launchers import Launcher
from support.trainer_world import TOKEN, World, losses, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

STEPS, BATCH = 6, 3


@dataclass
class TrainerPod:
    """One of the gang, with the processes behind it."""

    process: subprocess.Popen[bytes]
    launcher: Launcher


@pytest.fixture
def start(make_world: Callable[..., World]) -> Iterator[Callable[[World], list[TrainerPod]]]:
    """Starts the two pods of a world; ends them at the end of the test."""
    pods: list[TrainerPod] = []

    def begin(world: World, indices: tuple[int, ...] = (0, 1)) -> list[TrainerPod]:
        made = []
        for index in indices:
            port = free_ports(1)[0]
            made.append(TrainerPod(world.pod(index, port), Launcher(port, TOKEN)))
        pods.extend(made)
        until(lambda: all(pod.launcher.awaits() for pod in made), 150.0)
        return made

    yield begin
    for pod in pods:
        if pod.process.poll() is None:
            pod.process.terminate()
    for pod in pods:
        try:
            pod.process.wait(60)
        finally:
            pod.process.kill()


def test_two_pods_train_what_one_does_through_deaths_and_a_suspension(make_world, start):
    spec = {"trainer": {"replicas": 2}}
    algorithm = {"maxSteps": STEPS}
    whole = make_world("whole", algorithm=algorithm)
    whole.fill(range(STEPS * BATCH), staleness=9)
    assert whole.train() == ExitCode.DONE
    whole.redis.flush()

    world = make_world("pods", algorithm=algorithm, spec=spec)
    world.fill(range(3 * BATCH), staleness=9)
    gang = start(world)
    assert not world.controller.attached, "no rank starts before its epoch"
    assert all(pod.launcher.restart(1) for pod in gang)
    until(lambda: len(world.controller.published) == 4, 150.0)

    gang[1].process.kill()  # a whole pod; the other one notices by itself
    gang[1].process.wait(60)
    until(gang[0].launcher.awaits, 150.0)
    assert gang[0].launcher.child().last_exit_code == ExitCode.INFRA
    gang[1] = start(world, (1,))[0]
    world.fill(range(3 * BATCH, 5 * BATCH), staleness=9)
    assert all(pod.launcher.restart(2) for pod in reversed(gang))
    until(lambda: world.controller.committed >= 4, 150.0)

    for pod in gang:  # a suspension: both save, then stop
        pod.launcher.drain()
    until(lambda: all(pod.launcher.phase() is ChildPhase.STOPPED for pod in gang), 150.0)
    assert [pod.launcher.child().last_exit_code for pod in gang] == [ExitCode.DRAINED, ExitCode.DRAINED]
    for pod in gang:
        pod.process.terminate()
    assert [pod.process.wait(30) for pod in gang] == [ExitCode.DRAINED, ExitCode.DRAINED]

    world.fill(range(5 * BATCH, STEPS * BATCH), staleness=9)
    gang = start(world)
    assert all(pod.launcher.restart(3) for pod in gang)
    until(lambda: all(pod.launcher.phase() is ChildPhase.COMPLETE for pod in gang), 150.0)
    assert [fence for fence, _ in world.controller.attached] == [1, 2, 3]
    trained = {entry.step: entry.groups for entry in evidence.read(world.root / "evidence").entries}
    expected = {entry.step: entry.groups for entry in evidence.read(whole.root / "evidence").entries}
    assert trained == expected
    assert losses(world) == pytest.approx(losses(whole), abs=1e-5)
