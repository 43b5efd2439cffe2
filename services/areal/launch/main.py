"""`python -m areal.launch.main`: supervises one role of a resolved job, as PID 1 of a pod or by hand.

Serves `Launcher` gRPC for that role and stays up after it completed, so that a controller which restarts pods that end
(a StatefulSet does) can read the outcome first; SIGTERM drains the role and ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from areal.errors import ConfigError, ExitCode
from areal.launch import orphans
from areal.launch.core import Phase
from areal.launch.role import read_token, report
from areal.launch.rows import child_of
from areal.launch.service import SERVICE_NAME, LauncherService
from areal.launch.supervise import Supervised
from areal.net.server import GrpcServer
from areal.observe import logs
from areal.observe.progress import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.plan import ResolvedJob, role_table
from areal.v1 import operations_pb2_grpc as operations_grpc

log = logging.getLogger("areal.launch")


async def supervise(job: ResolvedJob, name: str, port: int) -> int:
    """Supervise the row `name` until SIGTERM; the exit code is 143, or the role's own when it failed for good."""
    rows = {row.name: row for row in role_table(job)}
    if name not in rows:
        raise ConfigError(f"the job has no role {name!r}", fix=f"name one of: {', '.join(rows)}")
    orphans.adopt()
    child = Supervised(child_of(rows[name], job.layout.logs, Path.cwd()))
    waits = WaitRegistry(f"launcher of {name}")
    server = GrpcServer(waits.owner, read_token(job.layout.token), waits=waits, progress=ProgressCounter())
    server.add(operations_grpc.add_LauncherServicer_to_server, LauncherService({name: child}), SERVICE_NAME)
    await server.start(port)
    await server.set_ready(True)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    life = asyncio.create_task(child.run())
    stop = asyncio.create_task(asked.wait())
    await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
    child.drain()
    status = await life
    log.info("%s: %s %s", name, status.phase, status.reason)
    if status.phase is Phase.FAILED and status.last_exit is not None:
        await server.stop()
        return status.last_exit.code if status.last_exit.code > 0 else ExitCode.INFRA
    with waits.waiting("drain", f"SIGTERM; {name} is {status.phase}"):
        await asked.wait()
    await server.stop()
    return ExitCode.DRAINED


def main() -> None:
    """Console entry."""
    parser = argparse.ArgumentParser(prog="areal-launch", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("row", help="name of the row, for example trainer-0")
    parser.add_argument("--job", type=Path, required=True, help="resolved.json of the run")
    parser.add_argument("--port", type=int, default=0, help="of the Launcher service; 0 picks a free one")
    arguments = parser.parse_args()
    logs.setup(f"launch-{arguments.row}", "?", json=False)
    try:
        code = asyncio.run(supervise(ResolvedJob.load(arguments.job), arguments.row, arguments.port))
    except Exception as error:
        code = report(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
