"""The last trusted steps in a cell, and the program itself.

Takes a run's descriptors, tightens the limits, lays out its files, tells when the first instruction runs. A Script
becomes `__main__` of this very interpreter, a Driver's `main` is called, a Command replaces the process.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import io
import linecache
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Collection
from typing import Any, NoReturn

from areal.reward.sandbox import kernel, landlock, messages
from areal.reward.sandbox.cell import SETUP_FAILED, Place
from areal.reward.sandbox.messages import Order
from areal.reward.sandbox.values import Limits

SCRIPT_NAME = "main.py"
_CHANNEL = 3
_TELL = 100  # above every number that a handed-over descriptor may get
_MOST_DESCRIPTORS = 5  # order, three standard streams, channel
_EXEC_FAILED = 127
_SETUP_CPU_S = 0.05  # of a cell; so little more or less doesn't cost a whole second of limit
_FLUSH_FAILED = 120  # as the interpreter's own
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip


def serve(entry: socket.socket, place: Place, box: str) -> NoReturn:
    """Waits for a run, becomes it, ends."""
    step = "hand-over"
    os.dup2(entry.detach(), _TELL, inheritable=False)
    tell = socket.socket(fileno=_TELL)
    try:
        given, descriptors = messages.receive(tell, _MOST_DESCRIPTORS)
        if given is None:
            os._exit(0)  # a spare that nobody needs any more
        order = messages.read_order(descriptors[0])
        channel = _take_descriptors(descriptors[1:], place)
        limits = Limits(**given["limits"])
        step = "environment"
        _set_environment(box, place)
        step = "files"
        _lay_files(order)
        step = "limits"
        if place.layers.rlimits:
            set_limits(limits, given, place.means.limits)
        if not given["writable"] and place.layers.landlock and place.means.landlock_abi and box != "/":
            _make_read_only(place.means.landlock_abi)
        step = "program"
        action = _prepare(order, channel)
        messages.send(tell, {"go": time.monotonic(), "cpu_s": time.process_time()})
        tell.close()
    except BaseException as error:
        with contextlib.suppress(OSError):
            messages.send(tell, {"failed": f"{step}: {type(error).__name__}: {error}"})
        os._exit(SETUP_FAILED)
    action()
    os._exit(1)


def _take_descriptors(descriptors: list[int], place: Place) -> socket.socket | None:
    high = list(range(_TELL + 1, _TELL + 1 + len(descriptors)))  # first out of the way of one another
    for descriptor, target in zip(descriptors, high, strict=True):
        os.dup2(descriptor, target, inheritable=False)
        os.close(descriptor)
    for standard in range(3):
        os.dup2(high[standard], standard)
    if len(high) > 3:
        os.dup2(high[3], _CHANNEL, inheritable=False)
    if place.layers.descriptors:
        os.closerange(_CHANNEL if len(high) <= 3 else _CHANNEL + 1, _TELL)
        kernel.close_from(_TELL + 1)
    return socket.socket(fileno=_CHANNEL) if len(high) > 3 else None


def _set_environment(box: str, place: Place) -> None:
    if place.layers.environment:
        os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    os.environ["HOME"] = box
    os.environ["TMPDIR"] = "/tmp"


def _lay_files(order: Order) -> None:
    executable = set(order.head["executable"])
    for path, data in order.files:
        if directory := os.path.dirname(path):
            os.makedirs(directory, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o755 if path in executable else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)


def _make_read_only(abi: int) -> None:
    both = landlock.READ_FILE | landlock.WRITE_FILE
    devices = [landlock.Rule(f"/dev/{name}", both) for name in ("null", "zero", "full")]
    rules = landlock.ruleset([landlock.Rule("/", landlock.READ | landlock.EXECUTE), *devices], abi)
    landlock.restrict(rules)
    os.close(rules)


def set_limits(limits: Limits, given: dict[str, Any], settable: Collection[int]) -> None:
    """Both limits of each kind alike: what ends the program can't be caught."""
    cpu = max(1, math.ceil(limits.cpu_s + time.process_time() - _SETUP_CPU_S))
    wanted = {
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_STACK: limits.stack_bytes,
        resource.RLIMIT_MEMLOCK: 64 << 10,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if given["address_space"]:
        wanted[resource.RLIMIT_AS] = given["address_space"]
    if given["tasks"]:
        wanted[resource.RLIMIT_NPROC] = given["tasks"]
    for kind, value in wanted.items():
        if kind not in settable:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _prepare(order: Order, channel: socket.socket | None) -> Any:
    kind = order.head["kind"]
    if kind == "command":
        environment = {**os.environ, **order.head["environment"]}
        argv = list(order.head["argv"])
        return lambda: _execute(argv, environment)
    _open_streams()
    if kind == "driver":
        driver = sys.modules.get(order.head["module"]) or importlib.import_module(order.head["module"])
        return lambda: _drive(driver, channel, order.body)
    return lambda: run_script(order.body.decode("utf-8", "surrogatepass"), order.head["argv"])


def _execute(argv: list[str], environment: dict[str, str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # the interpreter ignores them, and exec would keep that
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(_EXEC_FAILED)


def _open_streams() -> None:
    """Fresh text streams over 0, 1 and 2: those of the zygote belong to it."""
    reader = io.BufferedReader(io.FileIO(0, "rb", closefd=False))
    sys.stdin = io.TextIOWrapper(reader, encoding="utf-8", errors="surrogateescape")
    writer = io.BufferedWriter(io.FileIO(1, "wb", closefd=False))
    sys.stdout = io.TextIOWrapper(writer, encoding="utf-8", errors="surrogateescape")
    errors = io.FileIO(2, "wb", closefd=False)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(errors), "utf-8", "backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # all cells of a zygote share its memory as it was


def _drive(driver: types.ModuleType, channel: socket.socket | None, payload: bytes) -> NoReturn:
    code = 1
    try:
        code = int(driver.main(channel, payload))
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    _leave(code)


def run_script(source: str, argv: list[str]) -> NoReturn:
    """Runs source as Python runs a file given on its command line, and ends the process as Python would."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
        del sys.modules[name]
    sys.argv = [SCRIPT_NAME, *argv]
    sys.path.insert(0, os.getcwd())
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=SCRIPT_NAME)
    sys.modules["__main__"] = main
    linecache.cache[SCRIPT_NAME] = (len(source), None, source.splitlines(keepends=True), SCRIPT_NAME)
    code = 1
    try:
        exec(compile(source, SCRIPT_NAME, "exec", dont_inherit=True), main.__dict__)
        code = 0
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException as error:
        _show(error)
    _leave(code)


def _show(error: BaseException) -> None:
    """Prints the traceback without our own frame. The interpreter's hook would look for the source in a file."""
    trace = error.__traceback__
    shown = error.with_traceback(trace.tb_next if trace else None)
    with contextlib.suppress(BaseException):
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(shown)
        else:
            sys.excepthook(type(shown), shown, shown.__traceback__)


def _exit_code(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    with contextlib.suppress(BaseException):
        print(request.code, file=sys.stderr)
    return 1


def _leave(code: int) -> NoReturn:
    """What the interpreter does at its end: threads, exit hooks, buffers."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException:
        code = code or 1
    try:
        sys.stdout.flush()
    except BaseException:
        code = code or _FLUSH_FAILED
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(code)
