"""Diagnostic bundle of a run (a zip): everything that one asks for when a run hangs, without its secrets.

Reads only; a part that can't be had is a line in the bundle saying why. Every text passes the redactor.
"""

import asyncio
import json
import os
import platform
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path

import psutil
from areal.errors import ArealError
from areal.local.log_stream import log_files
from areal.net.channel import connect
from areal.observe.causes import why
from areal.observe.live import Live, read_live
from areal.plan import RunLayout
from areal.plan.access import token_in
from areal.plan.callers import Outsider
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from google.protobuf.json_format import MessageToJson

from areal_view.why.job_facts import redacted

LAST_LINES = 200  # of each role's log
_STACK_LINES = 400
_ASK_S = 2.0
_STALL_MARKS = ("Timeout (", "no progress for ", "Fatal Python error")
_PACKAGES = ("areal-kube", "torch", "transformers", "numpy", "grpcio", "protobuf", "redis", "sglang", "flash-attn")


def write(run: Path, target: Path) -> list[str]:
    """Write the bundle, readable by its owner only; answers the names in it."""
    layout = RunLayout(run.absolute())
    live = read_live(layout.live)
    secrets = _secrets(layout)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in _parts(layout, live):
            bundle.writestr(name, redacted(text, secrets))
        return bundle.namelist()


def _parts(layout: RunLayout, live: Live | None) -> Iterator[tuple[str, str]]:
    yield "versions.txt", _versions()
    yield "why.txt", _told(lambda: _why(live))
    yield "resolved.json", _told(layout.resolved.read_text)
    yield "live.json", _told(layout.live.read_text)
    yield "rollout.json", _fleet(layout, live)
    yield "processes.txt", _processes(live)
    try:
        files = log_files(layout.logs)
    except ArealError as error:
        yield "logs.txt", str(error)
        return
    for role, parts in files.items():
        lines = _tail(parts[-1], 20 * LAST_LINES)
        yield f"logs/{role}.txt", "".join(lines[-LAST_LINES:])
        stalls = [place for place, line in enumerate(lines) if line.startswith(_STALL_MARKS)]
        if stalls:
            yield f"stacks/{role}.txt", "".join(lines[stalls[-1] :][:_STACK_LINES])


def _why(live: Live | None) -> str:
    if live is None:
        return "it never said what it does\n"
    answer = why(live)
    return f"{answer.named}\n  fix: {answer.fix}\n\n{json.dumps(asdict(answer), indent=1)}\n"


def _fleet(layout: RunLayout, live: Live | None) -> str:
    """Fleet, queues and load as the controller sees them now."""
    if live is None or not live.goes_on:
        return "the run doesn't go on: nobody can be asked\n"
    try:
        controller = json.loads(layout.resolved.read_bytes())["endpoints"]["controller"]
        return asyncio.run(_controllers(controller, token_in(layout.access, layout.token, Outsider.OPERATOR)))
    except Exception as error:  # whatever is wrong with the run must not cost the bundle
        return f"{type(error).__name__}: {error}\n"


async def _controllers(address: str, token: str) -> str:
    async with connect(address, token) as channel:
        stub = rollout_grpc.RolloutStub(channel)
        return MessageToJson(await stub.GetRolloutStatus(rollout.GetRolloutStatusRequest(), timeout=_ASK_S))


def _versions() -> str:
    lines = [f"python {platform.python_version()}", platform.platform()]
    for name in _PACKAGES:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} is not installed")
    lines.append(f"cores {os.cpu_count()}, load {os.getloadavg()}, memory {psutil.virtual_memory()}")
    return "\n".join(lines) + "\n"


def _processes(live: Live | None) -> str:
    """Each role's family: state, CPU, memory, threads."""
    lines = []
    for role in live.roles if live is not None else ():
        lines.append(f"{role.name}: {role.phase}, {role.doing or role.reason}")
        try:
            root = psutil.Process(role.pid) if role.pid else None
            family: Sequence[psutil.Process] = [root, *root.children(recursive=True)] if root else []
        except psutil.Error:
            family = []
        lines.extend(_told(partial(_process, one)) for one in family)
    return "\n".join(lines) + "\n"


def _process(one: psutil.Process) -> str:
    with one.oneshot():
        times, memory = one.cpu_times(), one.memory_info().rss >> 20
        command = " ".join(one.cmdline())[:300]
        return f"  {one.pid} {one.status()}, {times.user + times.system:.1f} s CPU, {memory} MiB, {command}"


def _told(read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, psutil.Error) as error:
        return f"{type(error).__name__}: {error}\n"


def _tail(path: Path, lines: int) -> list[str]:
    with path.open(errors="replace") as file:
        return list(deque(file, lines))


def _secrets(layout: RunLayout) -> set[str]:
    """Secrets of a run: those it keeps in files for its own calls, and those of this environment."""
    found = set()
    for path in (layout.token, *layout.access.glob("[!d]*"), *layout.redis.glob("*.password")):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    marks = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY")
    found.update(value for name, value in os.environ.items() if any(mark in name.upper() for mark in marks))
    return found - {""}
