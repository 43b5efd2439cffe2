"""Ranks of a gloo group as forked processes of a program that has imported torch: a fraction of a second a case.

A test runs such a program by `program`; the program forks its ranks by `forked`, which begin by `joined`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from areal.errors import ArealError
from areal_trainer.engine.group import RankGroup

TESTS = Path(__file__).resolve().parents[1]


def program(name: str, *arguments: object, timeout_s: float = 280.0, **environment: str) -> list[str]:
    """The lines that `support.NAME` prints."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", f"support.{name}", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def joined(rank: int, store: Path, world_size: int, replicas: int = 1, tensor: int = 1, context: int = 1) -> RankGroup:
    """In a forked rank: the group of all."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    return RankGroup(replicas, tensor, context)


def forked(target: Callable[..., object], rank: int, errors: Path, *args: object) -> int:
    """Fork a rank that runs `target(rank, *args)`, and ends with 75 for an error of ours, whose words are in a file."""
    pid = os.fork()
    if pid:
        return pid
    try:
        target(rank, *args)
    except ArealError as error:
        Path(f"{errors}{rank}").write_text(error.message)
        os._exit(75)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def ended(pids: list[int], patience_s: float = 60.0) -> list[int]:
    """Exit codes, of ranks that hang too: they are killed in the end."""
    codes = dict.fromkeys(pids, 0)
    running = set(pids)
    deadline = time.monotonic() + patience_s
    while running:
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
                running.discard(pid)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return list(codes.values())


def words(errors: Path, world_size: int) -> dict[int, str]:
    """What the ranks that failed said."""
    return {rank: file.read_text() for rank in range(world_size) if (file := Path(f"{errors}{rank}")).exists()}
