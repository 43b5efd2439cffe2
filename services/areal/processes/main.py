"""`areal-launch`: supervises one role of a resolved job, as the first process of a pod or by hand.

Owns the role's child, with a trainer's those of the servers in its pod, the `Launcher` service about them, and what a
first process owes its container: signals, strangers' ended processes, standard output, an exit code. A role that
completed leaves its launcher up, so that a controller which restarts pods that end (a StatefulSet does) can read the
outcome first; so does a trainer that failed. SIGTERM drains.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from areal.errors import ExitCode
from areal.net.server import GrpcServer
from areal.nvidia import VISIBLE
from areal.observe import logs
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan import ResolvedJob, RoleHost, RoleRow
from areal.plan.access import access_of
from areal.plan.cluster_names import BESIDE, ENV_INDEX, ENV_POD_IP
from areal.plan.table import pod_rows
from areal.processes import exits, family
from areal.processes.core import TERMINAL, ChildPhase, RestartBy
from areal.processes.logfile import last_words
from areal.processes.role import report
from areal.processes.service import SERVICE_NAME, LauncherService
from areal.processes.supervise import ChildStatus, ChildSupervisor, child_of
from areal.v1 import operations_pb2_grpc as operations_grpc

log = logging.getLogger("areal.processes")

_OURS = "AREAL_"  # the environment that says who a role is; all other variables are the container's to set
_LAST_LINES = 20  # of the role's log, in the termination message


@dataclass(frozen=True)
class LaunchRequest:
    """What `areal-launch` was asked."""

    job_file: Path
    role: str
    index: int
    port: int
    host: str | None = None  # to listen on; the job's unless given


async def supervise(request: LaunchRequest) -> int:
    """Supervise the role until SIGTERM, or until it failed; answers the exit code."""
    job = ResolvedJob.load(request.job_file)
    scratch = Path(tempfile.gettempdir())
    place = RoleHost.pod(request.job_file.absolute(), interface=_interface(), scratch=scratch)
    row, *beside = pod_rows(job, request.role, request.index, place)
    living: set[int] = set()
    family.adopt()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, collect_zombies, living)
    stdout = os.dup(sys.stdout.fileno())
    # logs outlive the pod in the run directory, where this role may write there
    log_directory = job.layout.logs if _writable(job.layout.logs) else scratch / "areal-logs"
    children = {
        each.name: ChildSupervisor(
            child_of(each, log_directory, Path.cwd(), env=_environment(each, os.environ), mirror=stdout), living=living
        )
        for each in (row, *beside)
    }
    waits = WaitRegistry(f"launcher of {row.name}")
    server = GrpcServer(waits.owner, access_of(job, row.role), waits=waits, progress=ProgressCounter())
    server.add(operations_grpc.add_LauncherServicer_to_server, LauncherService(children), SERVICE_NAME)
    await server.start(request.port, request.host or job.bind)
    serve_metrics_for(row, job, request.host or job.bind)
    await server.set_ready(True)
    try:
        status = await _until_it_ends(*children.values(), waits=waits, ready=partial(server.set_service_ready, BESIDE))
    finally:
        await server.stop()
    log.info("%s: %s %s", status.name, status.phase, status.reason)
    if status.phase is not ChildPhase.FAILED:
        return ExitCode.DRAINED
    reason = status.last_exit.named(status.reason) if status.last_exit else status.reason
    told = last_words(children[status.name].spec.log, _LAST_LINES).lines
    exits.leave_message("\n".join([f"{status.name}: {reason}", *told]))
    code = status.last_exit.code if status.last_exit else int(ExitCode.BUG)
    return code if code >= 0 else exits.SIGNALLED - code  # as a container has it: a signal is 128 and its number


def collect_zombies(keepers: Collection[int]) -> list[int]:
    """Collect all ended children that are no keepers; returns their pids.

    A process whose parent dies becomes the first process' child, programs started by `kubectl exec` among them; nobody
    else would collect it. Keepers are left alone: their `Popen` does.
    """
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if (
                child.pid not in keepers
                and child.status() == psutil.STATUS_ZOMBIE
                and os.waitpid(child.pid, os.WNOHANG)[0]
            ):
                found.append(child.pid)
    return found


def serve_metrics_for(row: RoleRow, job: ResolvedJob, host: str) -> int | None:
    """Serve `/metrics` where the role does not, and return the port; None where it does.

    Of a gang only the first member serves, and a pod that answers no scrape is taken for dead.
    """
    if row.ready != "none":
        return None
    return RoleMetrics(row.role, job.name, job.namespace).serve(row.ports["metrics"], host)


async def _until_it_ends(
    child: ChildSupervisor, *beside: ChildSupervisor, waits: WaitRegistry, ready: Callable[[bool], Awaitable[None]]
) -> ChildStatus:
    """The child's lives up to the end: SIGTERM drained it, or it failed and nobody will start it again.

    Those beside it live through all of its lives, whatever its epoch. When one of them fails for good the child is
    drained, and the answer is that one's status. `ready` is told whether all of them are.
    """
    asked = asyncio.Event()
    signals = 0
    failed: list[ChildStatus] = []

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        asked.set()
        for one in (child, *beside) if signals > 1 else ():
            one.kill()

    async def life_of(one: ChildSupervisor) -> None:
        status = await one.run()
        if not asked.is_set():
            failed.append(status)
            asked.set()

    async def tell() -> None:
        while True:
            changes = [asyncio.create_task(one.changed()) for one in beside]
            await ready(all(one.status.phase is ChildPhase.READY for one in beside))
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
            for change in changes:
                change.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    stop = asyncio.create_task(asked.wait())
    lives = [asyncio.create_task(life_of(one)) for one in beside]
    telling = asyncio.create_task(tell()) if beside else None
    try:
        while True:
            life = asyncio.create_task(child.run())
            await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
            if asked.is_set():
                for one in (child, *beside):
                    one.drain()
            status = await life
            if asked.is_set():
                return failed[0] if failed else status
            if status.phase is ChildPhase.FAILED and child.spec.policy.restart is RestartBy.ITSELF:
                return status
            log.info("%s: %s %s; the launcher stays up to say so", child.spec.name, status.phase, status.reason)
            with waits.waiting("end", f"SIGTERM, or a new epoch; {child.spec.name} is {status.phase}"):
                while child.status.phase in TERMINAL and not stop.done():
                    change = asyncio.create_task(child.changed())
                    await asyncio.wait({change, stop}, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
            if asked.is_set():
                return failed[0] if failed else child.status
    finally:
        stop.cancel()
        if telling is not None:
            telling.cancel()
        for one in beside:
            one.drain()
        await asyncio.gather(*lives)


def _environment(row: RoleRow, ours: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: the row's defaults, the container's own choices, then who the role is and its GPUs.

    A home that can't be written, as a user without an entry has it, is none.
    """
    chosen = dict(ours)
    if (home := chosen.get("HOME", "/")) == "/" or not _writable(Path(home)):
        chosen.pop("HOME", None)
    identity = {name: value for name, value in row.env.items() if name.startswith(_OURS) or name == VISIBLE}
    return {**row.env, **chosen, **identity}


def _writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK, effective_ids=True)


def _interface() -> str:
    """The network interface with the pod's address; empty when that isn't known."""
    if not (address := os.environ.get(ENV_POD_IP)):
        return ""
    found = psutil.net_if_addrs().items()
    return next((name for name, addresses in found if any(one.address == address for one in addresses)), "")


def parse(argv: list[str] | None = None) -> LaunchRequest:
    """The command line."""
    parser = argparse.ArgumentParser(prog="areal-launch", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--role", required=True, help="which role, for example trainer")
    parser.add_argument("--index", type=int, help=f"which of several of this role; ${ENV_INDEX}, or 0")
    parser.add_argument("--job", type=Path, required=True, help="resolved.json of the run")
    parser.add_argument("--port", type=int, default=0, help="of the Launcher service; 0 picks a free one")
    parser.add_argument("--host", help="the address to listen on; the job's unless given")
    given = parser.parse_args(argv)
    index = int(os.environ.get(ENV_INDEX) or 0) if given.index is None else given.index
    return LaunchRequest(given.job, given.role, index, given.port, given.host)


def main() -> None:
    """Console entry. Leaves without waiting for threads."""
    request = parse()
    logs.setup(f"launch-{request.role}", "?")
    try:
        code = int(asyncio.run(supervise(request)))
    except Exception as error:
        code = int(report(error))
        exits.leave_message(str(error))
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
