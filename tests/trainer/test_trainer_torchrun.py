"""How ranks are started: alone, on one node, on several that meet once an epoch."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from areal.errors import InfraError
from areal.plan.roles import free_ports
from areal_trainer.torchrun import EPOCH_PORTS, await_name, of_epoch, parse, rank_environment

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


def test_the_only_rank_of_a_node_needs_no_agent():
    alone = parse(["--nnodes", "1", "--nproc-per-node", "1", *RANK])
    assert "MASTER_ADDR" not in rank_environment(alone, 3)
    one_of_two = parse(["--nnodes", "2", "--node-rank", "1", "--master-addr", "t-0", "--master-port", "29500", *RANK])
    assert rank_environment(one_of_two, 3) == {
        "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "t-0",
        "MASTER_PORT": "29503",
    }  # fmt: skip


def eventually(true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


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


@pytest.mark.component
def test_two_nodes_of_two_ranks_are_one_gang_of_four(start_node):
    nodes = [start_node(node, code=0) for node in range(2)]
    said = "".join(node.communicate(timeout=150)[0] for node in nodes)
    assert sorted(said.splitlines()) == ["0 4 0 uid-3", "1 4 1 uid-3", "2 4 0 uid-3", "3 4 1 uid-3"]
    assert [node.returncode for node in nodes] == [0, 0]


@pytest.mark.component
def test_a_node_ends_with_the_code_of_its_rank_that_failed(start_node):
    start_node(0, code=65)
    assert start_node(1, code=65).wait(150) == 65


@pytest.fixture
def start_node() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts one of two nodes of two ranks each; rank 3 exits with `code`."""
    nodes: list[subprocess.Popen[str]] = []
    gang = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "0", "--rdzv-id", "uid"]
    gang += ["--master-addr", "127.0.0.1", "--master-port", str(free_ports(1)[0])]
    environment = {**os.environ, "AREAL_EPOCH": "3", "PYTHONPATH": str(Path(__file__).parents[1])}

    def start(node: int, *, code: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "areal_trainer.torchrun", *gang, "--node-rank", str(node)]
        command += ["-m", "support.show_rank", str(code)]
        nodes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return nodes[-1]

    yield start
    for node in nodes:
        node.kill()
        node.wait(60)
        assert node.stdout is not None
        node.stdout.close()


def standing_by(tmp_path: Path) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A standby that has done its imports, and its launcher's end. `rank.py` stands for the trainer."""
    (tmp_path / "standing.py").write_text(STANDING)
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "standing.py"), str(theirs.fileno())], pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return ours, process


STANDING = """\
import os, sys
from types import SimpleNamespace as Some
from areal_trainer import torchrun

def run(arguments):
    print(arguments, *map(os.environ.get, ("RANK", "AREAL_EPOCH", "MASTER_PORT")), flush=True)
    return 75

os.environ["AREAL_STANDBY"] = sys.argv[1]
job = Some(paths=Some(start_model="m", tensorboard=None))
sys.modules |= {  # torch takes seconds
    "areal_trainer.run": Some(), "areal_trainer.engine": Some(), "areal_trainer.publish": Some(),
    "areal_trainer.engine.engine": Some(PolicyEngine=None), "areal_trainer.engine.group": Some(RankGroup=None),
    "areal_trainer.engine.model": Some(empty_model={"m": "read"}.__getitem__),
    "areal_trainer.publish.canary": Some(prepare=None),
    "areal_trainer.settings": Some(model_options=None, settings_of=lambda path: {"x": job}[str(path)]),
    "areal_trainer.main": Some(main=run, leave=sys.exit),
}
torchrun.await_name = lambda host: None
gang = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "t-0", "--master-port", "29500"]
sys.exit(torchrun.main([*gang, "-m", "areal_trainer.main", "--job", "x"]))
"""


def test_a_standby_becomes_the_rank_of_the_epoch_that_it_is_told(tmp_path: Path) -> None:
    ours, process = standing_by(tmp_path)
    with ours, (tmp_path / "out").open("w+b") as out:
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "areal-standby\n")
        socket.send_fds(ours, [b'{"AREAL_EPOCH": "3"}\n'], [out.fileno()])
        assert process.wait(60) == 75
        out.seek(0)
        assert out.read() == b"['--job', 'x'] 1 3 29503\n"


def test_a_standby_ends_with_its_launcher(tmp_path: Path) -> None:
    ours, process = standing_by(tmp_path)
    eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "areal-standby\n")
    ours.close()
    assert process.wait(60) == 143
