"""Runs of other programs and of several processes: all of them are the run, and end with it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Ending, ImageCommand, Limits, MemoryBound, ProgramRun, PythonScript

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

MANY = Limits(wall_s=20, cpu_s=10, processes=16)


def named(name: str) -> list[str]:
    """Processes of this machine whose command line holds a name."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and path.name != str(os.getpid()):
            try:
                if name.encode() in (path / "cmdline").read_bytes():
                    found.append(path.name)
            except OSError:
                continue
    return found


async def test_a_command_replaces_the_process(namespaced: Sandbox) -> None:
    run = ProgramRun(ImageCommand(("sh", "-c", "read x; echo $x $HOME $MINE; exit 9"), {"MINE": "m"}), stdin=b"in\n")
    ended = await namespaced.run(run)
    assert (ended.exit_code, ended.stdout) == (9, b"in /box m\n")


async def test_a_command_that_is_not_there_is_127(namespaced: Sandbox) -> None:
    ended = await namespaced.run(ProgramRun(ImageCommand(("no-such-program",))))
    assert ended.exit_code == 127
    assert b"no-such-program" in ended.stderr


async def test_a_command_of_one_process_can_not_fork(namespaced: Sandbox) -> None:
    ended = await namespaced.run(ProgramRun(ImageCommand(("sh", "-c", "(echo inner); echo outer"))))
    assert b"inner" not in ended.stdout


async def test_pipelines_and_subprocesses_work_where_asked(namespaced: Sandbox) -> None:
    ended = await namespaced.run(ProgramRun(ImageCommand(("sh", "-c", "seq 100 | sort -n | tail -1")), limits=MANY))
    assert ended.stdout == b"100\n"
    source = "import subprocess; print(subprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout)"
    assert (await namespaced.run(ProgramRun(PythonScript(source), limits=MANY))).stdout == b"hi\n\n"


async def test_multiprocessing_works_where_asked(namespaced: Sandbox) -> None:
    source = "import multiprocessing as m\ndef f(x): return x * x\n"
    source += "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as pool: print(pool.map(f, range(5)))"
    ended = await namespaced.run(ProgramRun(PythonScript(source), limits=MANY))
    assert ended.stdout == b"[0, 1, 4, 9, 16]\n", ended.stderr


async def test_a_daemon_that_holds_the_pipes_ends_with_its_run(namespaced: Sandbox) -> None:
    name = f"27{os.getpid() % 1000:03d}"
    command = ImageCommand(("sh", "-c", f"setsid sleep {name} & echo started"))
    before = time.monotonic()
    ended = await namespaced.run(ProgramRun(command, limits=MANY))
    assert (ended.clean, ended.stdout) == (True, b"started\n")
    assert time.monotonic() - before < 15
    assert not named(f"sleep\0{name}")


async def test_children_of_a_killed_run_are_killed(namespaced: Sandbox) -> None:
    name = f"28{os.getpid() % 1000:03d}"
    command = ImageCommand(("sh", "-c", f"trap '' TERM INT HUP; setsid sleep {name} & sleep {name}"))
    ended = await namespaced.run(ProgramRun(command, limits=Limits(wall_s=1.0, processes=16)))
    assert ended.ending is Ending.WALL_LIMIT
    assert not named(f"sleep\0{name}")


async def test_a_fork_bomb_is_held_and_ended(namespaced: Sandbox) -> None:
    source = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    ended = await namespaced.run(ProgramRun(PythonScript(source), limits=Limits(wall_s=1.5, cpu_s=1.0, processes=16)))
    assert ended.ending in (Ending.WALL_LIMIT, Ending.CPU_LIMIT)
    assert (await namespaced.run(ProgramRun(PythonScript("print(1)")))).stdout == b"1\n"


async def test_more_processes_than_allowed_are_refused(namespaced: Sandbox) -> None:
    source = "import os, time\nfor _ in range(50):\n    if os.fork() == 0: time.sleep(5); os._exit(0)"
    ended = await namespaced.run(ProgramRun(PythonScript(source), limits=Limits(wall_s=20, cpu_s=10, processes=8)))
    assert ended.ending is Ending.PROCESS_LIMIT


async def test_threads_of_a_neighbour_take_nothing_from_a_run(namespaced: Sandbox) -> None:
    greedy = (
        "import threading, time\nt = []\ntry:\n    while True:\n        t.append(threading.Thread(target=time.sleep, "
    )
    greedy += "args=(2,), daemon=True)); t[-1].start()\nexcept RuntimeError: time.sleep(1)"
    modest = "import threading\nt = [threading.Thread(target=print, args=('x',)) for _ in range(8)]\n"
    modest += "for one in t: one.start()\nfor one in t: one.join()"
    runs = [ProgramRun(PythonScript(greedy), limits=Limits(wall_s=5, cpu_s=4)) for _ in range(2)]
    runs += [ProgramRun(PythonScript(modest), limits=Limits(wall_s=20, cpu_s=10)) for _ in range(4)]
    ended = await asyncio.gather(*(namespaced.run(run) for run in runs))
    assert [one.stdout for one in ended[2:]] == [b"x\n" * 8] * 4


async def test_memory_of_all_processes_together_is_bounded(namespaced: Sandbox) -> None:
    if namespaced.powers.memory_bound is not MemoryBound.CGROUP:
        pytest.skip("no cgroup: memory is bounded for each process by itself")
    source = (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(60 << 20); time.sleep(5)\n"
    )
    source += "        os._exit(0)\nfor _ in range(8): assert os.wait()[1] == 0"
    limits = Limits(wall_s=20, cpu_s=10, processes=16, memory_bytes=200 << 20)
    ended = await namespaced.run(ProgramRun(PythonScript(source), limits=limits))
    assert ended.ending is Ending.MEMORY_LIMIT
    assert ended.memory_peak_bytes is not None
    assert ended.memory_peak_bytes <= 200 << 20


async def test_a_run_sees_no_process_but_its_own(namespaced: Sandbox) -> None:
    source = "import os\nprint(os.getpid(), [int(n) for n in os.listdir('/proc') if n.isdigit()])"
    ended = await namespaced.run(ProgramRun(PythonScript(source)))
    assert ended.stdout == b"2 [2]\n", ended.stderr


async def test_the_first_process_of_the_cell_can_not_be_harmed(namespaced: Sandbox) -> None:
    source = "import os, signal\nfor n in range(1, 32):\n    try: os.kill(1, n)\n    except OSError: pass\n"
    source += (
        "for name in ('mem', 'environ', 'maps', 'fd/3'):\n    try: open(f'/proc/1/{name}', 'rb').read(1); print(name)\n"
    )
    source += "    except OSError: pass\nprint('alive')"
    ended = await namespaced.run(ProgramRun(PythonScript(source)))
    assert (ended.clean, ended.stdout) == (True, b"alive\n")


async def test_children_whose_end_nobody_waits_for_count_against_the_limits(namespaced: Sandbox) -> None:
    """Ignored SIGCHLD: the kernel adds what they used to nobody's usage, and the group's account has it."""
    if namespaced.powers.memory_bound is not MemoryBound.CGROUP:
        pytest.skip("no cgroup: each process is bounded by itself, all together by the wall limit")
    burn = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(4):\n"
        "    if os.fork() == 0:\n        held = bytearray(90 << 20)\n        held[::4096] = b'x' * len(held[::4096])\n"
        "        while time.process_time() < 0.6: pass\n        os._exit(0)\n"
        "    try: os.wait()\n    except ChildProcessError: pass\nprint('done')"
    )
    ended = await namespaced.run(ProgramRun(PythonScript(burn), limits=Limits(wall_s=20, cpu_s=1.0, processes=8)))
    assert (ended.ending, ended.stdout) == (Ending.CPU_LIMIT, b"done\n"), ended
    assert ended.cpu_s >= 2.4
    assert (ended.memory_peak_bytes or 0) >= 90 << 20
    roomy = await namespaced.run(ProgramRun(PythonScript(burn), limits=MANY))
    assert (roomy.clean, 2.4 <= roomy.cpu_s < 3.5) == (True, True), roomy
    modest = await namespaced.run(ProgramRun(ImageCommand(("sh", "-c", "echo x | cat")), limits=MANY))
    assert modest.cpu_s < 0.5  # a cell's last program costs the next nothing
