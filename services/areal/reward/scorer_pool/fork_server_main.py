"""A process that has imported what scorers of one kind need, and forks one whenever it is asked.

    python -m areal.reward.scorer_pool.fork_server_main SCORER ARGUMENT… --link FD --parent PID

A fork is ready in milliseconds where the imports take a second. Started by `fork_server`, never by people. One thread,
which does nothing but fork, kill and reap, so it always answers; it dies with the service, and its forks with it. What
it is told and says are JSON objects, one a packet.
"""

import argparse
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from typing import Any

import orjson

from areal.errors import ArealError
from areal.processes.keeper import die_with
from areal.reward.scorer_pool import frames
from areal.reward.scorer_pool.process_main import Judge, limit_memory, make_judge, serve

PACKET_BYTES = 4096
_JUDGE = "areal_judge.api"  # has the confinement; named, because this package works without it


def _in_fork(judge: Judge, parent: int, asked: dict[str, Any], descriptors: list[int]) -> None:
    """The fork's whole life; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with(parent)
        link = socket.socket(fileno=descriptors[0])
        current = frames.ProgressArea(descriptors[1])
        if asked["memory_bytes"]:
            limit_memory(asked["memory_bytes"])
        lacking = importlib.import_module(_JUDGE).confine() if asked["confined"] else ()
        link.sendall(frames.encode({"ready": True, "lacking": lacking}))
        serve(link, current, judge)
        code = 0
    except BrokenPipeError:
        pass  # the service is gone, or doesn't want this fork any more
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class _ForkerProcess:
    def __init__(self, link: socket.socket, judge: Judge) -> None:
        self._link = link
        self._judge = judge
        self._numbers: dict[int, int] = {}  # pid → the service's number of it
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def run(self) -> None:
        """Until the service closes its end."""
        while True:
            ready, _, _ = select.select([self._link.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, PACKET_BYTES)
                while self._numbers:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    self._say({"ended": self._numbers.pop(pid), "code": os.waitstatus_to_exitcode(status)})
            if self._link.fileno() in ready and not self._obey():
                return

    def _obey(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._link, PACKET_BYTES, 2)
        if not packet:
            return False
        asked = orjson.loads(packet)
        if "kill" in asked:
            for pid, number in self._numbers.items():
                if number == asked["kill"]:
                    os.kill(pid, signal.SIGKILL)  # it is ours and not reaped, so the number is still its own
            return True
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            self._link.close()
            os.close(self._woken)
            os.close(self._waker)
            _in_fork(self._judge, parent, asked, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._numbers[pid] = asked["fork"]
        self._say({"forked": asked["fork"], "pid": pid})
        return True

    def _say(self, message: dict[str, Any]) -> None:
        self._link.sendall(orjson.dumps(message))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("scorer")
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    given = parser.parse_args()
    die_with(given.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    os.dup2(2, 1)
    link = socket.socket(fileno=given.link)
    os.set_inheritable(given.link, False)
    try:
        judge = make_judge(given.scorer, given.arguments)
    except ArealError as error:
        link.sendall(orjson.dumps({"failed": error.message[:1000], "fix": error.fix[:1000]}))
        return int(error.exit_code)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    link.sendall(orjson.dumps({"ready": True}))
    with contextlib.suppress(BrokenPipeError):  # the service may close its end while it is told something
        _ForkerProcess(link, judge).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
