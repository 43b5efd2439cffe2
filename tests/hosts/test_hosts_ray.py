"""Rows on Ray, as far as no cluster is needed: an actor's programs, a row's place, what the command refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import pytest
from areal.cli.main import main
from areal.errors import ConfigError
from areal.hosts import ray_cluster
from areal.hosts.placement import Host, HostPlan, RayRun, RowPlace
from areal.hosts.ray_cluster import HostActor
from areal.hosts.task import fitted


def program(text: str) -> list[str]:
    return [sys.executable, "-c", f"import os, signal, sys, time\n{text}"]


async def ended(actor: HostActor, command: Sequence[str], **env: str) -> tuple[bytes, int]:
    """What a program said, and its exit code."""
    *said, code = [part async for part in actor.run("worker-0", command, {**os.environ, **env})]
    return b"".join(said), code


@pytest.mark.parametrize(("end", "code"), [("sys.exit(65)", 65), ("os.kill(os.getpid(), 9)", -9), ("pass", 0)])
async def test_a_program_says_what_it_says_and_then_how_it_ended(end, code):
    told = "print('out', flush=True); print(os.environ['MINE'], file=sys.stderr, flush=True)"
    assert await ended(HostActor(), program(f"{told}\n{end}"), MINE="err") == (b"out\nerr\n", code)


async def test_output_of_any_length_comes_whole():
    said, code = await ended(HostActor(), program("sys.stdout.write('x' * 3_000_000)"))
    assert (len(said), code) == (3_000_000, 0)


async def test_a_signal_reaches_the_row_s_program_alone_and_counts_it():
    actor, said = HostActor(), asyncio.Queue()
    patient = program("signal.signal(15, lambda *_: sys.exit(143))\nos.write(1, b'up')\nwhile True: time.sleep(0.05)")

    async def follow() -> None:
        async for part in actor.run("worker-0", patient, os.environ):
            said.put_nowait(part)

    following = asyncio.create_task(follow())
    assert await asyncio.wait_for(said.get(), 30) == b"up"
    assert await actor.signal("worker-1", signal.SIGKILL) == 0
    assert await actor.signal("worker-0", signal.SIGTERM) == 1
    assert await asyncio.wait_for(said.get(), 30) == 143
    await following
    assert await actor.signal("worker-0", signal.SIGTERM) == 0, "a program that has ended is none"


async def test_a_program_sees_the_gpus_that_ray_gave_to_its_actor(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    command = program("print(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert await ended(HostActor(), command, CUDA_VISIBLE_DEVICES="0,1") == (b"4,5\n", 0)


def test_a_row_on_ray_is_told_its_host_its_rank_and_its_part_of_the_gpus():
    hosts = {"n0": Host("n0", "10.0.0.1", 1, 16, 4), "n1": Host("n1", "10.0.0.2", 1, 16, 4)}
    plan = HostPlan(hosts, {"trainer": RowPlace(("n0", "n1"), (2, 3))}, ray=RayRun("auto", "areal-1"))
    ours = {"AREAL_HOST": "n1", "AREAL_HOST_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7", "SLURMD_NODENAME": "other"}
    command, env = fitted(plan, "trainer", ["torchrun", "--node-rank", "0"], ours)
    assert command == ["torchrun", "--node-rank", "1"]
    assert (env["AREAL_ADDRESS"], env["CUDA_VISIBLE_DEVICES"]) == ("10.0.0.2", "6,7")


@pytest.mark.parametrize("options", [["nodes"], ["nodes=two"], ["partition=gpu"], ["gpus=-1"], ["nodes=0"]])
def test_an_option_that_can_t_be_read_is_refused_before_ray_is_asked(options):
    with pytest.raises(ConfigError) as caught:
        ray_cluster.reserve(options, print)
    assert options[0] in caught.value.message
    assert "--ray nodes=2" in caught.value.fix


def test_without_ray_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="needs the package 'ray'") as caught:
        ray_cluster.reserve([], print)
    assert "[ray]" in caught.value.fix


@pytest.mark.parametrize(
    "words", [["--on", "ray", "--slurm", "nodes=2"], ["--on", "slurm", "--ray", "nodes=2"], ["--ray", "nodes=2"],
              ["--on", "mesos"], ["--on", "ray", "--seeds", "2"]]
)  # fmt: skip
def test_options_of_another_scheduler_are_refused(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["areal", "run", "examples/quickstart.yaml", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 64
    assert "--on ray --ray OPTION" in capsys.readouterr().err
