"""The long-lived Python interpreter of a box: names, modules and open files stay between commands.

A fork of the driver, which is warm. It shows the value of a last expression, as the interactive interpreter does; an
exception and SystemExit end the command, not the interpreter.
"""

from __future__ import annotations

import ast
import linecache
import os
import signal
import sys
import traceback
import types
from typing import NoReturn

from areal_judge.boxes.driver.worker import REPORTS, CommandWorker

_COMMANDS = 0
_LENGTH_BYTES = 8
_OURS = (__file__, ast.__file__)


class Interpreter(CommandWorker):
    """Python."""

    def become(self) -> NoReturn:
        """Reads commands from descriptor 4, so that a command's own standard input is /dev/null."""
        commands = os.dup(_COMMANDS)
        os.set_inheritable(REPORTS, False)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, _COMMANDS)
        os.close(null)
        _serve(commands)

    def encoded(self, source: str, *, fresh: bool) -> bytes:
        data = source.encode("utf-8", "surrogateescape")
        return len(data).to_bytes(_LENGTH_BYTES, "little") + data

    def code_of(self, report: bytes) -> int | None:
        code, found, _ = report.partition(b"\0")
        if not found:
            return None
        return int(code) if code.isdigit() else 255

    def interrupt(self) -> bool:
        """A KeyboardInterrupt: a command that lets itself be interrupted costs no state."""
        os.kill(self.pid, signal.SIGINT)
        return True


def _serve(commands: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
        del sys.modules[name]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [""]
    sys.path.insert(0, "")
    own, number = os.getpid(), 0
    while head := _exactly(commands, _LENGTH_BYTES):
        source = _exactly(commands, int.from_bytes(head, "little")).decode("utf-8", "surrogateescape")
        number += 1
        code = _run(source, f"<command {number}>", main.__dict__)
        if os.getpid() != own:
            os._exit(code)  # a child of the command's that came to its end
        os.write(REPORTS, b"%d\0" % code)
    os._exit(0)


def _exactly(descriptor: int, size: int) -> bytes:
    """That many bytes; none at the end."""
    data = b""
    while len(data) < size:
        part = os.read(descriptor, min(size - len(data), 1 << 20))
        if not part:
            os._exit(0)
        data += part
    return data


def _run(source: str, name: str, names: dict[str, object]) -> int:
    """Executes a command; its exit code."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            _execute(source, name, names)
            code = 0
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException as error:
        _show(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            code = code or 1
    return code


def _execute(source: str, name: str, names: dict[str, object]) -> None:
    tree = ast.parse(source, name)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    if shown is not None:
        exec(compile(ast.Interactive([shown]), name, "single", dont_inherit=True), names)


def _exit_code(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    print(request.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Prints the traceback without our own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    try:
        traceback.print_exception(error.with_traceback(trace))
    except BaseException:
        os.write(2, b"an exception that can't be shown\n")
