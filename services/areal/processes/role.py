"""`areal-role`: entry point of every role, as a process or in a pod.

Owns what all roles have in common: the resolved job, the token, logs, SIGTERM, exit codes, and one clear message when
something ends the role. Imports the role itself last, by name, so that nothing else depends on any role. A tool is a
role that serves nobody: it does its work and ends.
"""

import argparse
import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from areal.distribution import missing_package, refuse_upstream
from areal.errors import ArealError, BugError, ExitCode, as_bug, of_machine
from areal.observe import logs
from areal.observe.otlp import open_traces
from areal.observe.waits import StallWatch
from areal.plan import ResolvedJob, RoleContext
from areal.plan.access import access_of, token_of
from areal.plan.cluster_names import ENV_ADDRESS, ENV_POD_IP
from areal.plan.role_specs import entries
from areal.processes import exits

log = logging.getLogger("areal.role")

_COLLECT_AFTER = (5_000, 200, 20)  # new objects, a pause of 0.2 ms; then each older generation after so many passes

Entry = Callable[[RoleContext], Awaitable[int]]
Tool = Callable[[ResolvedJob], str]
"""Answers its last words, which Kubernetes keeps; raises when it fails."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a role."""
    parser = argparse.ArgumentParser(prog="areal-role", description="Start one role of a resolved job.")
    parser.add_argument("role", choices=sorted(entries()))
    parser.add_argument("--job", type=Path, required=True, help="resolved.json of the run")
    parser.add_argument("--index", type=int, default=0, help="which of several of this role")
    parser.add_argument("--port", type=int, default=0, help="its gRPC port; 0 picks a free one")
    parser.add_argument("--metrics-port", type=int, default=0, help="its Prometheus port; 0 picks a free one")
    parser.add_argument(
        "--engine-port", type=int, default=0, help="the engine's HTTP port; the resolved job has it, too"
    )
    return parser.parse_args(argv)


def load_entry(name: str) -> Any:
    """The function behind `module:function`: an Entry or a Tool."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("areal"):
            raise BugError(f"the entry {name} is missing: {error}") from error
        raise missing_package(error) from error


def collect_rarely() -> None:
    """Let the garbage collector look at old objects rarely, and never at what was imported: thousands of requests in
    flight are no garbage, and looking through them all is a pause of every one. It looks at new objects often: each
    gRPC call leaves a cycle of six behind, which nothing else frees."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def report(error: BaseException) -> ExitCode:
    """Log `error` once, as its reader needs it, leave it for who supervises, and choose the exit code."""
    told = error if isinstance(error, ArealError) else of_machine(error) or as_bug(error)
    stack = told.exit_code is ExitCode.BUG or told is not error
    log.error("%s error: %s", told.kind, told, exc_info=error if stack else None)
    exits.write_error(told)
    return told.exit_code


async def serve(entry: Entry, context: RoleContext) -> int:
    """Run the role until it ends. The first SIGTERM or SIGINT asks it to stop, the second cancels it."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(entry(context))

    def asked() -> None:
        if context.stop.is_set():
            task.cancel()
        else:
            log.info("asked to stop")
            context.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    try:
        code = await task
    except asyncio.CancelledError:
        return ExitCode.DRAINED
    return ExitCode.DRAINED if context.stop.is_set() and code == ExitCode.DONE else code


def use(tool: Tool, job: ResolvedJob) -> int:
    """Let a tool do its work; its last words, or its error's, become the container's."""
    try:
        exits.leave_message(tool(job))
    except ArealError as error:
        exits.leave_message(str(error))
        raise
    return ExitCode.DONE


def start(argv: Sequence[str] | None = None) -> int:
    """Everything from the command line to the exit code."""
    arguments = parse(argv)
    row, index = entries()[arguments.role], arguments.index
    name = row.row(index)
    logs.setup(name, "?")
    try:
        refuse_upstream()
        job = ResolvedJob.load(arguments.job)
        logs.setup(name, job.name)
        if not row.supervised:
            return use(load_entry(row.entry), job)
        token = token_of(job, row.role) if row.calls_others else ""
        access = access_of(job, row.role)
        entry: Entry = load_entry(row.entry)
        wanted = job.spec.observability.traces
        traces = open_traces(
            job.uid, name, job.name, *((wanted.endpoint, wanted.sample_rate) if wanted is not None else (None, None))
        )
        collect_rarely()

        async def main() -> int:
            context = RoleContext(
                resolved=job,
                role=row.role,
                index=index,
                port=arguments.port,
                metrics_port=arguments.metrics_port,
                token=token,
                stop=asyncio.Event(),
                incarnation=f"{name}.{uuid.uuid4().hex[:8]}",
                access=access,
                bind=job.bind,
                advertise=os.environ.get(ENV_ADDRESS) or (job.in_pods and os.environ.get(ENV_POD_IP)) or "127.0.0.1",
                traces=traces,
            )
            try:
                async with StallWatch(context.progress).on_loop():
                    return await serve(entry, context)
            finally:
                traces.close()

        return asyncio.run(main())
    except KeyboardInterrupt:
        return ExitCode.DRAINED
    except Exception as error:
        return report(error)


def main() -> None:
    """Console entry. Leaves without waiting for threads: a stopped role has nothing more to say."""
    code = int(start())
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
