"""Subreaper process of one child: kills all its descendants when the child or the supervisor ends.

Runs as `python -I -S keeper.py NAME` with a socket to the supervisor as standard input, and imports the standard
library only, so that it starts in milliseconds and stays small. Promises:

- when the supervisor is gone (the socket ends, SIGKILL included), every descendant is killed, then the keeper ends;
- when the child exits, whatever it left behind is killed before the keeper exits with the child's own status;
- when the keeper itself is killed, the child gets SIGKILL from the kernel and the rest falls to the supervisor, which
  is a subreaper too (`areal.processes.family`).

A process group is not enough: torchrun puts each rank, and engines put their workers, in sessions of their own.
Being a subreaper means that a descendant whose parent dies becomes the keeper's child, so none can get away.

Protocol on the socket: the supervisor writes one JSON line {"command", "env", "cwd", "descriptors"}, the last of which
are the child's alone; the keeper answers one JSON line {"pid"} and later {"code"}. SIGTERM is passed on to the child.
A supervisor that can't signal the keeper writes a byte instead, the signal's number.

`keeper.py --serve SOCKET` is a server of keepers, one a connection, for a supervisor in another container of the pod.
Its image needs Python and nothing else: an order with "beside" adds its variables to the environment there.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_LIMIT_S = 10.0  # a process that outlives SIGKILL this long sits in the kernel; nobody can do more
ABANDONED = 137  # the family was killed because the supervisor closed the socket, or died
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def prctl(option: int, value: int) -> None:
    """Best effort: on systems without prctl the socket still ends with the supervisor."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; end at once when it is dead already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(75)


def read_order() -> "dict[str, object]":
    """The supervisor's line. Ends the process when there is none: the supervisor died first."""
    data = b""
    while not data.endswith(b"\n"):
        if not (chunk := os.read(0, 65536)):
            sys.exit(0)
        data += chunk
    order: dict[str, object] = json.loads(data)
    return order


def tell(message: "dict[str, int]") -> None:
    with contextlib.suppress(OSError):
        os.write(0, json.dumps(message).encode() + b"\n")


def become(order: "dict[str, object]", keeper: int) -> None:
    """In the forked child: turn into the command. Returns never."""
    try:
        die_with(keeper)
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and ignoring is inherited
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.chdir(str(order["cwd"]))
        command = [str(part) for part in order["command"]]  # type: ignore[attr-defined]
        env: dict[str, str] = order["env"]  # type: ignore[assignment]
        os.execvpe(command[0], command, {**os.environ, **env} if order.get("beside") else env)
    except BaseException as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        os.write(2, f"can't start {order['command']}: {error}\n".encode())
        os._exit(code)


def descendants(root: int) -> "list[int]":
    """All processes below `root`, from one reading of /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end_family() -> None:
    """Kill every descendant until none is left. New ones that appear meanwhile are found by the next round."""
    deadline = time.monotonic() + SWEEP_LIMIT_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], 0.005)


def leave(status: int) -> None:
    """Exit as the child did, a signal included."""
    code = os.waitstatus_to_exitcode(status)
    tell({"code": code})
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def main() -> None:
    order = read_order()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *PASSED_ON):
        signal.signal(number, lambda *_: None)
    keeper = os.getpid()
    if (child := os.fork()) == 0:
        become(order, keeper)
    for descriptor in order["descriptors"]:  # type: ignore[attr-defined]
        os.close(descriptor)  # else the supervisor wouldn't see that the child closed its end
    try:
        status = watch(child, wake_read)
    except BaseException as error:  # whatever happens here, nothing may be left behind
        end_family()
        os.write(2, f"keeper: {error!r}\n".encode())
        os._exit(75)
    end_family()
    if status is None:
        os._exit(ABANDONED)
    leave(status)


def watch(child: int, wake_read: int) -> "int | None":
    """Pass signals on until the child ends (its wait status) or the supervisor is gone (None)."""
    tell({"pid": child})
    while True:
        readable, _, _ = select.select([0, wake_read], [], [])
        numbers = heard() if 0 in readable else b""
        if 0 in readable and not numbers:
            return None
        for number in numbers + (os.read(wake_read, 512) if wake_read in readable else b""):
            if number in PASSED_ON:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
        if (status := reap(child)) is not None:
            return status


def heard() -> bytes:
    """Signals that the supervisor wrote; none when the socket ended. One that died with unread words resets it."""
    try:
        return os.read(0, 4096)
    except OSError:
        return b""


def reap(child: int) -> "int | None":
    """Collect all that ended; the wait status of `child` when it is among them."""
    found = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return found
            if pid == child:
                found = status
    except ChildProcessError:
        return found


def serve(place: str) -> None:
    """Start a keeper for each connection to the Unix socket at `place`.

    All containers of a pod get SIGTERM at once, and the supervisor drains with its child: the server then ends when no
    family is left.
    """
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # as the first process of a container is anyway: what a killed keeper leaves
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    keepers: set[int] = set()
    leaving = False
    while keepers or not leaving:
        readable, _, _ = select.select([listening.fileno(), wake_read], [], [])
        if listening.fileno() in readable:
            talk, _ = listening.accept()
            command = [sys.executable, "-I", "-S", os.path.abspath(__file__), "served"]
            dup = (os.POSIX_SPAWN_DUP2, talk.fileno(), 0)
            keepers.add(os.posix_spawn(command[0], command, os.environ, file_actions=[dup], setsid=True))
            talk.close()
        if wake_read in readable:
            leaving |= signal.SIGTERM in os.read(wake_read, 512)
            with contextlib.suppress(ChildProcessError):
                while pid := os.waitpid(-1, os.WNOHANG)[0]:
                    keepers.discard(pid)
            if not keepers:
                end_family()


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "--serve" else main()
