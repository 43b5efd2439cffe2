"""A script in a cell of either tier: how it ends, what it is given, what it may use."""

from __future__ import annotations

import asyncio
import signal

import pytest
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Ending, Limits, ProgramRun, PythonScript, RunEnding

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

SHORT = Limits(wall_s=1.0, cpu_s=5.0)


async def run(sandbox: Sandbox, source: str, stdin: bytes = b"", limits: Limits | None = None) -> RunEnding:
    return await sandbox.run(
        ProgramRun(PythonScript(source), stdin=stdin, limits=limits or Limits(wall_s=20, cpu_s=10))
    )


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("exit(4)", 4),
        ("import sys; sys.exit(256 + 5)", 5),
        ("import sys; sys.exit(-1)", 255),
        ("raise SystemExit('why')", 1),
        ("import os; os._exit(120)", 120),
        ("1/0", 1),
        ("syntax error", 1),
        ("import atexit; atexit.register(print, 'bye')", 0),
    ],
)
async def test_a_script_ends_with_the_exit_code_that_python_gives_it(sandbox: Sandbox, source: str, code: int) -> None:
    ended = await run(sandbox, source)
    assert (ended.ending, ended.exit_code) == (Ending.EXITED, code)


async def test_exit_hooks_and_threads_finish_before_the_end(sandbox: Sandbox) -> None:
    source = "import atexit, threading, time\natexit.register(print, 'hook')\n"
    source += "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\nprint('main')"
    ended = await run(sandbox, source)
    assert ended.stdout == b"main\nthread\nhook\n"


async def test_an_exception_shows_the_programs_own_lines_and_none_of_ours(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "def f():\n    return [][1]\n\nf()\n")
    assert b"return [][1]" in ended.stderr
    assert b"IndexError" in ended.stderr
    assert b"areal" not in ended.stderr


async def test_the_message_of_an_exit_goes_to_standard_error(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "import sys; sys.exit('no good')")
    assert (ended.exit_code, ended.stderr) == (1, b"no good\n")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
async def test_a_signal_is_the_programs_own_end(sandbox: Sandbox, number: int) -> None:
    source = f"import os, signal\nsignal.signal({int(number)}, signal.SIG_DFL) if {int(number)} != 9 else 0\n"
    ended = await run(sandbox, source + f"os.kill(os.getpid(), {int(number)})\nsignal.pause()")
    assert (ended.ending, ended.signal) == (Ending.SIGNALED, number)


async def test_abort_is_a_signal(sandbox: Sandbox) -> None:
    assert (await run(sandbox, "import os; os.abort()")).signal == signal.SIGABRT


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3_000_000])
async def test_input_of_any_size_arrives_whole(sandbox: Sandbox, size: int) -> None:
    ended = await run(sandbox, "import sys; print(len(sys.stdin.buffer.read()))", stdin=b"x" * size)
    assert ended.stdout == f"{size}\n".encode()


async def test_input_is_a_regular_file_that_nobody_can_change(sandbox: Sandbox) -> None:
    source = """
import mmap, os, stat, sys
found = os.fstat(0)
print(stat.S_ISREG(found.st_mode), found.st_size, os.lseek(0, 0, os.SEEK_CUR), sys.stdin.isatty())
print(bytes(mmap.mmap(0, 0, prot=mmap.PROT_READ)))
print(sys.stdin.readline().strip(), sys.stdin.seekable(), sys.stdin.seek(0), sys.stdin.read().split())
for write in (lambda: os.write(0, b"x"), lambda: os.write(os.open("/proc/self/fd/0", os.O_RDWR), b"x")):
    try:
        print(write())
    except OSError:
        print("refused")
"""
    ended = await run(sandbox, source, stdin=b"12\n34\n")
    words = ["True 6 0 False", "b'12\\n34\\n'", "12 True 0 ['12', '34']", "refused", "refused"]
    assert ended.stdout.decode().splitlines() == words, ended.stderr


async def test_input_that_is_never_read_holds_nobody_up(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "print('done')", stdin=b"x" * 3_000_000)
    assert (ended.clean, ended.stdout) == (True, b"done\n")


async def test_a_program_that_prints_while_it_reads_is_not_stuck(sandbox: Sandbox) -> None:
    source = "import sys\nfor line in sys.stdin:\n    print(line, end='')"
    text = b"".join(b"%d\n" % number for number in range(100_000))
    ended = await run(sandbox, source, stdin=text)
    assert ended.stdout == text


async def test_output_up_to_the_cap_is_whole_and_one_byte_more_ends_the_run(sandbox: Sandbox) -> None:
    limits = Limits(wall_s=20, cpu_s=10, output_bytes=300_000)
    source = "import sys, time\nsys.stdout.write('x' * {})\nsys.stdout.flush()\ntime.sleep({})"
    whole = await run(sandbox, source.format(300_000, 0), limits=limits)
    assert (whole.clean, len(whole.stdout)) == (True, 300_000)
    over = await run(sandbox, source.format(300_001, 60), limits=limits)
    assert (over.ending, len(over.stdout)) == (Ending.OUTPUT_LIMIT, 300_000)
    assert over.wall_s < 20


async def test_endless_output_ends_the_run(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "while True: print('x' * 1000)")
    assert (ended.ending, len(ended.stdout)) == (Ending.OUTPUT_LIMIT, 1 << 20)


async def test_standard_error_above_its_cap_is_dropped(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "import sys\nfor _ in range(5000): sys.stderr.write('e' * 1000)\nprint('fine')")
    assert (ended.clean, ended.stdout, len(ended.stderr), ended.stderr_truncated) == (True, b"fine\n", 64 << 10, True)


async def test_output_of_a_killed_program_is_kept(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "print('before', flush=True)\nwhile True: pass", limits=SHORT)
    assert (ended.ending, ended.stdout) == (Ending.WALL_LIMIT, b"before\n")


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
        "import signal\nfor n in {*range(1, 32)} - {9, 19}: signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(60,)).start()",
        "import atexit, time; atexit.register(time.sleep, 60)",
        "input(); input()\nimport time; time.sleep(60)",
    ],
    ids=["spins", "sleeps", "stops", "ignores", "threads", "hook", "reads"],
)
async def test_whatever_a_program_does_the_wall_limit_ends_it(sandbox: Sandbox, source: str) -> None:
    ended = await run(sandbox, source, stdin=b"a\nb\n", limits=SHORT)
    assert ended.ending is Ending.WALL_LIMIT
    assert ended.wall_s >= 1.0


async def test_the_cpu_limit_ends_a_program_that_ignores_signals(sandbox: Sandbox) -> None:
    source = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    ended = await run(sandbox, source, limits=Limits(wall_s=60, cpu_s=1.0))
    assert ended.ending is Ending.CPU_LIMIT
    assert 0.6 <= ended.cpu_s < 3.0


async def test_sleeping_costs_no_cpu(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "import time; time.sleep(0.3)")
    assert ended.wall_s >= 0.3
    assert ended.cpu_s < 0.3


@pytest.mark.parametrize(
    "source",
    ["x = bytearray(10 ** 10)", "x = []\nwhile True: x.append(bytearray(10 ** 6))", "x = 'a'\nwhile True: x += x"],
)
async def test_memory_above_the_limit_is_said_so(sandbox: Sandbox, source: str) -> None:
    limits = Limits(wall_s=60, cpu_s=20, memory_bytes=128 << 20)
    ended = await run(sandbox, source, limits=limits)
    assert ended.ending is Ending.MEMORY_LIMIT
    assert ended.max_rss_bytes < 256 << 20


async def test_memory_below_the_limit_is_there(sandbox: Sandbox) -> None:
    limits = Limits(wall_s=60, cpu_s=20, memory_bytes=256 << 20)
    ended = await run(sandbox, "x = bytearray(180 << 20)\nprint(len(x))", limits=limits)
    assert ended.clean
    assert ended.max_rss_bytes > 180 << 20


async def test_a_deep_recursion_is_a_runtime_error(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "def f(): return f()\nf()")
    assert (ended.ending, ended.exit_code) == (Ending.EXITED, 1)


async def test_the_competitors_way_to_recurse_deeply_works(sandbox: Sandbox) -> None:
    source = "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(128 << 20)\n"
    source += "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
    source += "t = threading.Thread(target=lambda: print(f(50000)))\nt.start()\nt.join()"
    assert (await run(sandbox, source)).stdout == b"50000\n"


async def test_a_program_can_not_open_more_files_than_its_limit(sandbox: Sandbox) -> None:
    source = (
        "import os\nopened = []\ntry:\n    while True: opened.append(os.dup(0))\nexcept OSError as e: print(e.errno)\n"
    )
    ended = await run(sandbox, source + "print(len(opened))")
    code, count = map(int, ended.stdout.split())
    assert (code, count < 64) == (24, True)


async def test_a_program_of_one_process_can_not_fork(sandbox: Sandbox) -> None:
    source = "import os\ntry: os.fork()\nexcept OSError as e: print(e.errno)"
    assert (await run(sandbox, source)).stdout == b"11\n"


async def test_a_script_can_not_become_another_program(sandbox: Sandbox) -> None:
    source = "import os\ntry: os.execv('/bin/sh', ['sh', '-c', 'echo got'])\nexcept OSError as e: print('no')"
    assert (await run(sandbox, source)).stdout == b"no\n"


async def test_it_looks_like_a_fresh_python(sandbox: Sandbox) -> None:
    source = "import sys, os\nprint(__name__, __file__, sys.argv, sys.stdin.encoding, sys.stdout.encoding)\n"
    source += "print(any(m.split('.')[0] == 'areal' for m in sys.modules))\n"
    source += "try:\n    import areal\nexcept ImportError: print('no areal')\n"
    ended = await sandbox.run(ProgramRun(PythonScript(source, argv=("a", "b")), limits=Limits(wall_s=20)))
    assert ended.stdout == b"__main__ main.py ['main.py', 'a', 'b'] utf-8 utf-8\nFalse\nno areal\n"


async def test_nothing_of_the_services_environment_is_there(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    ended = await run(sandbox, "import os; print(sorted(os.environ))")
    names = eval(ended.stdout)
    assert set(names) <= {"PATH", "LANG", "HOME", "TMPDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                          "PYTHONDONTWRITEBYTECODE", "LC_CTYPE"}  # fmt: skip


async def test_only_the_standard_descriptors_are_open(sandbox: Sandbox) -> None:
    source = "import os\nopened = []\nfor n in range(1000):\n    try: os.fstat(n)\n    except OSError: continue\n"
    source += "    opened.append(n)\nprint(opened)"
    assert (await run(sandbox, source)).stdout == b"[0, 1, 2]\n"


async def test_invalid_text_passes_through(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "print(input())", stdin=b"\xff\xfe\n")
    assert ended.stdout == b"\xff\xfe\n"


async def test_surrogates_and_nulls_in_source_are_the_programs_fault(sandbox: Sandbox) -> None:
    for source in ("x = '\ud800'", "x = 1\0"):
        assert (await run(sandbox, source)).exit_code == 1


async def test_runs_draw_different_random_numbers(sandbox: Sandbox) -> None:
    seen = {(await run(sandbox, "import random; print(random.random())")).stdout for _ in range(4)}
    assert len(seen) == 4


async def test_many_runs_at_once_end_each_with_its_own_result(sandbox: Sandbox) -> None:
    async def one(number: int) -> bool:
        ended = await run(sandbox, "import sys\nprint(int(input()) ** 2)\nsys.exit(7)", stdin=b"%d\n" % number)
        return (ended.exit_code, ended.stdout) == (7, b"%d\n" % number**2)

    assert all(await asyncio.gather(*(one(number) for number in range(40))))


async def test_a_neighbour_that_is_killed_disturbs_nobody(sandbox: Sandbox) -> None:
    bad = [run(sandbox, "while True: pass", limits=SHORT), run(sandbox, "x = bytearray(10 ** 10)")]
    good = [run(sandbox, "print(sum(range(1000)))") for _ in range(10)]
    ended = await asyncio.gather(*bad, *good)
    assert all(one.stdout == b"499500\n" for one in ended[2:])


async def test_every_result_names_the_tier_and_what_was_used(sandbox: Sandbox) -> None:
    ended = await run(sandbox, "sum(range(10 ** 6))")
    assert ended.tier is sandbox.powers.tier
    assert ended.cpu_s > 0
    assert ended.wall_s > 0
    assert ended.max_rss_bytes > 1 << 20
    assert ended.setup_s > 0
