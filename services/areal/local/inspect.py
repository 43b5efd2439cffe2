"""`areal status`: asks every role of a running job from outside, and prints who waits for what since when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import orjson
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from areal.errors import ConfigError
from areal.launch.role import read_token
from areal.launch.service import phase_from_wire
from areal.local import endpoints, view, wording
from areal.local.status import RoleState, RunFacts, RunView, StatusSource, Waiting
from areal.net.channel import connect
from areal.plan import RunLayout
from areal.record import summary
from areal.record.run_rows import Records
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc

_ASK_S = 2.0


def look(run_dir: Path) -> RunView:
    """One picture of the run that goes on in `run_dir`; raises ConfigError when none does."""
    if not run_dir.is_dir():
        raise ConfigError(f"there is no directory {run_dir}", fix="name a run directory, for example runs/digits")
    return asyncio.run(_look(RunLayout(run_dir.absolute())))


async def _look(layout: RunLayout) -> RunView:
    run = endpoints.read(layout.endpoints)
    token = read_token(layout.token)
    records = Records(layout.metrics, layout.evaluations)
    facts = RunFacts(
        run.name, token, run.addresses, run.controller, records, run.max_steps, run.max_staleness, run.base_urls
    )
    facts.started = time.monotonic() - max(0.0, time.time() - layout.endpoints.stat().st_mtime)
    async with connect(run.supervisor, token) as channel:
        stub = operations_grpc.LauncherStub(channel)

        async def states() -> Sequence[RoleState]:
            return await asyncio.gather(*(_state(stub, name) for name in run.roles))

        try:
            await _state(stub, run.roles[0])
        except grpc.aio.AioRpcError as error:
            raise ConfigError(
                f"the supervisor of {layout.root} (pid {run.pid}) does not answer: {error.details()}",
                fix="if the run was killed, go on with `areal run … --resume`",
            ) from error
        source = StatusSource(facts, states)
        try:
            return await source.view()
        finally:
            await source.close()


async def _state(stub: operations_grpc.LauncherAsyncStub, name: str) -> RoleState:
    child = await stub.GetChildStatus(operations.GetChildStatusRequest(role=name), timeout=_ASK_S)
    return RoleState(
        name,
        phase_from_wire(child.phase),
        child.last_exit_reason,
        child.restarts,
        child.pid,
        warning=child.restart_warning,
    )


def ended(run_dir: Path) -> str | None:
    """What became of a run that doesn't go on any more; None when it left nothing."""
    found = summary.read(RunLayout(run_dir).summary)
    return f"{found['status']} after {found['steps']} steps" if found else None


def table(picture: RunView) -> RenderableType:
    """The picture for people: the run in a line, roles, and all waits."""
    waits = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("role", "phase", "policy", "wait", "for what", "since", "deadline"):
        waits.add_column(title, no_wrap=title != "for what", ratio=1 if title == "for what" else None)
    waits.expand = True
    for role in picture.roles:
        phase = str(role.phase)
        if not role.waits:
            doing = role.doing or role.reason or ("" if role.answers else "(does not answer)")
            waits.add_row(role.name, phase, role.policy_id, "", "" if role.name == "redis" else doing, "", "")
        for at, wait in enumerate(role.waits):
            head = (role.name, phase, role.policy_id) if at == 0 else ("", "", "")
            deadline = wording.duration(wait.deadline_s) if wait.deadline_s else "none"
            waits.add_row(*head, wait.name, wait.waits_for, wording.duration(wait.age_s), deadline)
    parts: list[RenderableType] = [Text(f"{picture.name}: {view.line(picture).strip()}", style="bold"), Text(), waits]
    if picture.rollout and picture.rollout.idle_reason:
        parts.append(Text(f"\nadmission: {picture.rollout.idle_reason}"))
    if picture.base_urls:
        parts.append(Text(f"\nagents call: {' '.join(picture.base_urls)}"))
    return Group(*parts)


def as_json(picture: RunView) -> bytes:
    """The picture for scripts."""
    status = picture.rollout
    return orjson.dumps(
        {
            "name": picture.name,
            "step": picture.step,
            "maxSteps": picture.max_steps,
            "policy": picture.policy,
            "stalled": picture.stalled,
            "idle": status.idle_reason if status else "",
            "baseUrls": list(picture.base_urls),
            "roles": [
                {
                    "name": role.name,
                    "phase": role.phase.value,
                    "pid": role.pid,
                    "restarts": role.restarts,
                    "policy": role.policy_id,
                    "doing": role.doing,
                    "reason": role.reason,
                    "waits": [_wait(wait) for wait in role.waits],
                }
                for role in picture.roles
            ],
        },
        option=orjson.OPT_INDENT_2,
    )


def _wait(wait: Waiting) -> dict[str, object]:
    return {
        "name": wait.name,
        "waitsFor": wait.waits_for,
        "ageSeconds": round(wait.age_s, 1),
        "deadlineSeconds": wait.deadline_s,
    }
