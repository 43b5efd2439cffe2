"""The stacks of a stalled process are in its log by themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import asyncio, time
from areal.observe.waits import ProgressCounter
from areal.observe.waits import StallWatch

def users_code_that_blocks():
    time.sleep(1.5)

async def main():
    async with StallWatch(ProgressCounter(), blocked_s=0.3).on_loop():
        await asyncio.sleep(0.1)
        users_code_that_blocks()

asyncio.run(main())
"""
WAITING = """
import asyncio
from areal.observe.waits import ProgressCounter
from areal.observe.waits import StallWatch

async def waits_for_ever():
    await asyncio.sleep(2.5)

async def main():
    async with StallWatch(ProgressCounter(), stalled_s=0.5).on_loop():
        await waits_for_ever()

asyncio.run(main())
"""
THREAD = """
import threading, time
from areal.observe.waits import ProgressCounter
from areal.observe.waits import StallWatch

def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=1.5)

end = StallWatch(ProgressCounter(), stalled_s=0.5).on_thread()
deadlock()
end()
"""
BUSY = """
import asyncio
from areal.observe.waits import ProgressCounter
from areal.observe.waits import StallWatch

async def main():
    progress = ProgressCounter()
    async with StallWatch(progress, blocked_s=3.0, stalled_s=60.0).on_loop():
        await asyncio.sleep(0.3)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "words", "times"),
    [(BLOCKED, "users_code_that_blocks", 1), (WAITING, "waits_for_ever", 1), (THREAD, "in deadlock", 1)],
)
def test_a_stall_shows_where_it_is(program: str, words: str, times: int):
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stderr
    assert said.count(words) == times, said


def test_a_process_that_works_says_nothing():
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
