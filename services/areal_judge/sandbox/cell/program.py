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
import random
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Collection
from typing import NoReturn

from areal_judge.sandbox.cell import messages
from areal_judge.sandbox.cell.orders import CellOrder, read_order
from areal_judge.sandbox.cell.place import ENTRY, SETUP_FAILED, CellPlace
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel import landlock

SCRIPT_NAME = "main.py"
_CHANNEL = 3
_MOST_DESCRIPTORS = 5  # order, three standard streams, channel
_EXEC_FAILED = 127
_SETUP_CPU_S = 0.05  # of a cell; so little more or less doesn't cost a whole second of limit
_FLUSH_FAILED = 120  # as the interpreter's own
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip


_ours: dict[str, types.ModuleType] = {}  # modules that a script doesn't find imported, and a driver does


def prepare(home: str, *, clean: bool) -> None:
    """What all programs begin with, done once by the process that they are forked from.

    Fresh text streams over 0, 1 and 2, an environment of their own (with `clean`, nothing else), and the library as a
    new interpreter would have it imported.
    """
    _open_streams()
    if clean:
        os.environ.clear()
    os.environ.update(_ENVIRONMENT, HOME=home, TMPDIR="/tmp")
    for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
        _ours[name] = sys.modules.pop(name)


def give_up(tell: socket.socket, step: str, error: BaseException) -> NoReturn:
    """Says what failed before the program began, and ends."""
    try:
        messages.send(tell, {"failed": f"{step}: {type(error).__name__}: {error}"})
    finally:
        os._exit(SETUP_FAILED)


def serve(entry: socket.socket, place: CellPlace, read_only: int | None, settled: Callable[[], None]) -> NoReturn:
    """Waits for a run, becomes it, ends.

    `read_only` is the ruleset for a run that may not write; `settled` returns when a program may begin.
    """
    step = "hand-over"
    try:
        order, descriptors = receive(entry)
        step = "files"
        settled()
        lay_files(order)
        if not order.head["writable"] and read_only is not None:
            landlock.restrict(read_only)
        step = "descriptors"
        channel = _take_descriptors(descriptors, place)
        step = "limits"
        if place.layers.rlimits:
            set_limits(order, place.means.limits)
        step = "program"
        random.seed()
        action = action_of(order, channel)
        say_go(entry)
        entry.close()
    except BaseException as error:
        give_up(entry, step, error)
    action()
    os._exit(1)


def receive(entry: socket.socket) -> tuple[CellOrder, list[int]]:
    """A run as it was handed over: its order, its other descriptors."""
    given, descriptors = messages.receive(entry, _MOST_DESCRIPTORS)
    if given is None:
        os._exit(0)  # a spare that nobody needs any more
    order = read_order(descriptors[0])
    os.close(descriptors[0])
    return order, descriptors[1:]


def say_go(entry: socket.socket) -> None:
    entry.send(b'{"go":%r,"cpu_s":%r}' % (time.monotonic(), time.process_time()))


def _take_descriptors(given: list[int], place: CellPlace) -> socket.socket | None:
    """The standard streams become 0 to 2, a channel 3. Those given are above: the order had 3."""
    for standard in range(3):
        os.dup2(given[standard], standard)
    if len(given) > 3:
        os.dup2(given[3], _CHANNEL, inheritable=False)
    if place.layers.descriptors:
        kernel.close_from(ENTRY + 1)
    return socket.socket(fileno=_CHANNEL) if len(given) > 3 else None


def lay_files(order: CellOrder) -> None:
    executable = set(order.head["executable"])
    for path, data in order.files:
        if directory := os.path.dirname(path):
            os.makedirs(directory, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o755 if path in executable else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)


def set_limits(order: CellOrder, settable: Collection[int]) -> None:
    """Both limits of each kind alike: what ends the program can't be caught."""
    cpu = max(1, math.ceil(order.head["cpu_s"] + time.process_time() - _SETUP_CPU_S))
    for kind, value in ((resource.RLIMIT_CPU, cpu), *order.head["rlimits"]):
        if kind in settable:
            hard = resource.getrlimit(kind)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))


def action_of(order: CellOrder, channel: socket.socket | None) -> Callable[[], NoReturn]:
    """What is left to do: the program itself."""
    kind = order.head["kind"]
    if kind == "command":
        environment = {**os.environ, **order.head["environment"]}
        argv = list(order.head["argv"])
        return lambda: _execute(argv, environment)
    numpys = sys.modules.get("numpy.random")
    if numpys is not None:
        numpys.seed()  # all cells of a zygote share its memory as it was
    if kind == "driver":
        sys.modules.update(_ours)
        driver = sys.modules.get(order.head["module"]) or importlib.import_module(order.head["module"])
        return lambda: _drive(driver, channel, order.body)
    source = order.body.decode("utf-8", "surrogatepass")
    return lambda: leave(run_script(source, order.head["argv"], order.head["prelude"]))


def _execute(argv: list[str], environment: dict[str, str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # the interpreter ignores them, and exec would keep that
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(_EXEC_FAILED)


def _open_streams() -> None:
    """Text streams over 0, 1 and 2, which are a file and a pipe meanwhile: a stream notes what it is opened over."""
    kept = [os.dup(standard) for standard in range(3)]
    empty = os.memfd_create("stdin", os.MFD_CLOEXEC)
    reader, writer = os.pipe()
    for standard, end in enumerate((empty, writer, writer)):
        os.dup2(end, standard)
    incoming = io.BufferedReader(io.FileIO(0, "rb", closefd=False))
    sys.stdin = io.TextIOWrapper(incoming, encoding="utf-8", errors="surrogateescape")
    outgoing = io.BufferedWriter(io.FileIO(1, "wb", closefd=False))
    sys.stdout = io.TextIOWrapper(outgoing, encoding="utf-8", errors="surrogateescape")
    errors = io.FileIO(2, "wb", closefd=False)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(errors), "utf-8", "backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    for standard, was in enumerate(kept):
        os.dup2(was, standard)
    for descriptor in (*kept, empty, reader, writer):
        os.close(descriptor)


def _drive(driver: types.ModuleType, channel: socket.socket | None, payload: bytes) -> NoReturn:
    code = 1
    try:
        code = int(driver.main(channel, payload))
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    leave(code)


def run_script(source: str, argv: list[str], prelude: str = "") -> int:
    """Runs source as Python runs a file given on its command line; its exit code."""
    found: dict[str, object] = {}
    if prelude:
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), found)
        found = {**builtins.__dict__, **{name: value for name, value in found.items() if not name.startswith("__")}}
    sys.argv = [SCRIPT_NAME, *argv]
    sys.path.insert(0, os.getcwd())
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=found or builtins, __file__=SCRIPT_NAME)
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
    return code


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


def leave(code: int) -> NoReturn:
    """What the interpreter does at its end: threads, exit hooks, buffers. Ends the process."""
    try:
        if len(threading._active) > 1 or threading._threading_atexits:  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException:
        code = code or 1
    os._exit(flushed(code))


def flushed(code: int) -> int:
    """The exit code, once what the program wrote is out."""
    try:
        sys.stdout.flush()
    except BaseException:
        code = code or _FLUSH_FAILED
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    return code
