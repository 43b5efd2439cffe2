"""How ranks are started: alone, on one node, on several that meet once an epoch."""

from __future__ import annotations

import itertools

import pytest
from areal.errors import InfraError
from areal_trainer.torchrun import EPOCH_PORTS, await_name, of_epoch, parse

RANK = ["-m", "areal_trainer.main", "--job", "x"]


def test_a_gang_of_one_is_told_from_several():
    one = parse(["--nnodes", "1", "--nproc-per-node", "1", "--max-restarts", "0", *RANK])
    assert one is not None
    assert (one.nodes, one.processes, one.command) == (1, 1, RANK)
    assert parse(["--nproc-per-node", "2", *RANK]).processes == 2
    assert parse(["--nnodes", "2", *RANK]).nodes == 2
    assert parse(["--nnodes", "1:4", *RANK]) is None
    assert parse(["script.py"]) is None


def test_epochs_next_to_each_other_share_neither_id_nor_port():
    gang = parse(
        ["--nnodes", "2", "--nproc-per-node", "4", "--max-restarts", "0", "--node-rank", "1", "--rdzv-id", "uid",
         "--master-addr", "trainer-0", "--master-port", "29500", *RANK]
    )  # fmt: skip
    assert gang is not None
    first, second = of_epoch(gang, 1), of_epoch(gang, 2)
    assert first[-len(RANK) :] == RANK
    assert first[first.index("--rdzv-id") + 1] == "uid-1"
    assert second[second.index("--rdzv-id") + 1] == "uid-2"
    ports = [of_epoch(gang, epoch)[of_epoch(gang, epoch).index("--master-port") + 1] for epoch in range(20)]
    assert all(port != following for port, following in itertools.pairwise(ports))
    assert {int(port) for port in ports} == set(range(29500, 29500 + EPOCH_PORTS))
    assert first[first.index("--node-rank") + 1] == "1"
    assert first[first.index("--max-restarts") + 1] == "0"


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_name_that_comes_late_is_waited_for():
    clock, tries = Clock(), []

    def resolve(host: str, _: None) -> None:
        tries.append(host)
        if len(tries) < 5:
            raise OSError("Name or service not known")

    await_name("late", resolve=resolve, clock=lambda: clock.now, sleep=clock.sleep)
    assert tries == ["late"] * 5
    assert clock.now == pytest.approx(2.0)


def test_a_name_that_never_comes_is_the_worlds_fault():
    clock = Clock()

    def resolve(host: str, _: None) -> None:
        raise OSError("Name or service not known")

    with pytest.raises(InfraError, match="nobody has no address after 30 s"):
        await_name("nobody", patience_s=30.0, resolve=resolve, clock=lambda: clock.now, sleep=clock.sleep)
