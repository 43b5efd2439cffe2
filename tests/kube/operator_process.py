"""An operator in a process of its own, as `areal operator` runs it, that finds fake pods through an address book.

`--mortal FILE` makes it die like a killed process right after a write reached the API server, before it could learn the
answer: once for each thing it ever writes. FILE remembers which; the parent forks the next operator, until one is asked
to stop. With QUICK=no in its environment it waits as long as in production.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from areal_operator.operator import times

if os.environ.get("QUICK", "yes") == "yes":  # tests would mostly wait; before the others, which import the numbers
    times.POLL_S, times.FRESH_S, times.FLUSH_S, times.RETRY_MISSING_S = 0.3, 3.0, 1.0, 1.0  # type: ignore[misc]

from areal.observe import logs
from areal_operator.operator import main as operator
from areal_operator.operator.observed import Pod
from areal_operator.runtime.lease import LeaseTimes
from areal_operator.runtime.transport import Request, Response, Transport

NOBODY = 9  # the discard port
KILLED = 137
UNCOUNTED = ("/leases", "/events")  # nothing is decided by what they hold


class AddressBook:
    """Incarnation of a pod → port, from a file that another process replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int] = (0, 0)
        self._ports: dict[str, int] = {}

    def dial(self, namespace: str, job: str, pod: Pod, port: int) -> tuple[str, int]:
        """See `Dialer`."""
        with contextlib.suppress(FileNotFoundError):
            found = self._path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._read:
                self._ports = json.loads(self._path.read_text())
                self._read = (found.st_mtime_ns, found.st_ino)
        return "127.0.0.1", self._ports.get(pod.incarnation, NOBODY)


class Mortal:
    """A transport whose process dies after each new kind of write. One write is on its way at a time: what went out
    beside the last one would be there at the next start, and its own death would never come."""

    def __init__(self, real: Transport, died: Path) -> None:
        self._real = real
        self._died = died
        self._known = set(died.read_text().splitlines()) if died.exists() else set()
        self._writing = asyncio.Lock()

    async def request(self, request: Request, *, deadline_s: float) -> Response:
        if request.method == "GET" or "dryRun" in request.query:
            return await self._real.request(request, deadline_s=deadline_s)
        async with self._writing:
            answer = await self._real.request(request, deadline_s=deadline_s)
            written = f"{request.method} {request.path}{_gist(request.body or {})}"
            if written not in self._known and not any(part in request.path for part in UNCOUNTED):
                with self._died.open("a") as file:
                    file.write(written + "\n")
                os._exit(KILLED)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _gist(body: Any) -> str:
    """What tells one write of a status from another; figures, times and words don't."""
    status = body.get("status") or {}
    conditions = [f"{item['type']}={item['reason']}" for item in status.get("conditions", [])]
    attempts = status.get("attempts", {})
    return " ".join(["", *conditions, f"{attempts.get('epoch')}/{attempts.get('restarts')}"]) if status else ""


def live(arguments: argparse.Namespace) -> None:
    """One operator, to its end."""
    logs.setup("operator", "", json=False)
    if arguments.mortal:
        connect = operator.connect

        async def connect_mortal(kubeconfig: Path | None) -> Transport:
            return Mortal(await connect(kubeconfig), arguments.mortal)

        operator.connect = connect_mortal  # type: ignore[assignment]
    lease = LeaseTimes(duration_s=arguments.lease_s, renew_s=arguments.lease_s * 0.6, retry_s=arguments.lease_s / 10)
    options = operator.OperatorOptions(
        namespaces=tuple(arguments.namespace),
        default_runtime=arguments.default_runtime,
        kubeconfig=arguments.kubeconfig,
        lease_namespace=arguments.lease_namespace,
        identity=arguments.identity,
        bind="127.0.0.1",
        metrics_port=arguments.metrics_port,
        health_port=arguments.health_port,
        workers=arguments.workers,
        qps=arguments.qps,
        burst=int(arguments.qps * 2),
        json_logs=False,
        lease_times=lease,
    )

    async def until_signal() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await operator.run(options, stop, dialer=AddressBook(arguments.book).dial)

    asyncio.run(until_signal())


def live_again_and_again(arguments: argparse.Namespace) -> None:
    """Fork one operator after the other: imports are paid once, a death is a real death."""
    child = 0
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        if child:
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    while not stopped:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                live(arguments)
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) not in (0, KILLED, -signal.SIGTERM):
            sys.exit("an operator ended by itself")


def main() -> None:
    """Console entry."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--book", type=Path, required=True)
    parser.add_argument("--identity", required=True)
    parser.add_argument("--lease-namespace", required=True)
    parser.add_argument("--lease-s", type=float, default=15.0)
    parser.add_argument("--default-runtime", default="")
    parser.add_argument("--namespace", action="append", default=[])
    parser.add_argument("--metrics-port", type=int, default=0)
    parser.add_argument("--health-port", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--qps", type=float, default=20.0)
    parser.add_argument("--mortal", type=Path)
    arguments = parser.parse_args()
    (live_again_and_again if arguments.mortal else live)(arguments)


if __name__ == "__main__":
    main()
