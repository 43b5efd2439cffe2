"""`areal status` and `areal set`: what the roles of a run last said, who waits for what, and changes of live fields.

A change is one call to the run's controller, which keeps them through restarts.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import orjson
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from areal.errors import ConfigError
from areal.local import view
from areal.local.status import RunView
from areal.net.channel import connect
from areal.net.status import raise_as
from areal.observe.causes import why
from areal.observe.live import Live, LiveWait, read_live
from areal.plan import ResolvedJob, RunLayout
from areal.plan.access import token_of
from areal.plan.callers import Outsider
from areal.record.run_rows import Records
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc

_LATE_S = 5.0  # `areal run` writes once a second; a loaded machine is late


def going_on(layout: RunLayout) -> Live:
    """Newest state of the run in a directory. Raises ConfigError when none goes on there."""
    if (live := read_live(layout.live)) is None or live.ended:
        raise ConfigError(f"no run goes on in {layout.root}", fix="start it with `areal run`")
    if not live.alive:
        raise ConfigError(
            f"the run in {layout.root} was cut off: its process {live.pid} is gone", fix=f"go on with `{live.resume}`"
        )
    return live


def look(run_dir: Path) -> RunView:
    """The last picture of the run in `run_dir`, with what holds it up or ended it; raises ConfigError without one."""
    layout = RunLayout(run_dir.absolute())
    if (live := read_live(layout.live)) is None:
        raise ConfigError(
            f"{run_dir} never said what it does",
            fix="start it with `areal run`; of a job on a cluster, ask `areal status rljob/NAME`",
        )
    records = Records(layout.metrics, layout.evaluations).refresh()
    return RunView(replace(live, cause=why(live)), records.steps, records.earlier, records.held_out)


def table(picture: RunView) -> RenderableType:
    """The picture for people: the run in a line, roles, and all waits."""
    waits = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("role", "phase", "policy", "wait", "for what", "since", "deadline"):
        waits.add_column(title, no_wrap=title != "for what", ratio=1 if title == "for what" else None)
    waits.expand = True
    live = picture.live
    for role in live.roles:
        if not role.waits:
            doing = "(does not answer)" if role.silent_s else role.doing or role.reason
            waits.add_row(role.name, role.phase, role.policy, "", doing, "", "")
        for at, wait in enumerate(role.waits):
            head = (role.name, role.phase, role.policy) if at == 0 else ("", "", "")
            deadline = view.duration(wait.deadline_s) if wait.deadline_s else "none"
            waits.add_row(*head, wait.name, wait.waits_for, view.duration(wait.age_s), deadline)
    parts: list[RenderableType] = [Text(f"{live.name}: {view.line(picture).strip()}", style="bold"), Text(), waits]
    if live.idle:
        parts.append(Text(f"\nadmission: {live.idle.text}"))
    if live.base_urls:
        parts.append(Text(f"\nagents call: {' '.join(live.base_urls)}"))
    if live.cause is not None and live.cause.fix:
        parts.append(Text(f"\nfix: {live.cause.fix}", style="green"))
    if live.goes_on and live.age_s > _LATE_S:
        parts.append(Text(f"\nthis is {view.duration(live.age_s)} old: `areal why` says more", style="bold yellow"))
    return Group(*parts)


_OF_ROLE = ("name", "phase", "pid", "restarts", "policy", "doing", "reason")


def as_json(picture: RunView) -> bytes:
    """The picture for scripts."""
    live = picture.live
    return orjson.dumps(
        {
            "name": live.name,
            "step": live.step,
            "maxSteps": live.max_steps,
            "policy": live.policy,
            "goesOn": live.goes_on,
            "cause": asdict(live.cause) if live.cause is not None else None,
            "stalled": live.stalled,
            "idle": live.idle.text if live.idle else "",
            "baseUrls": live.base_urls,
            "roles": [
                {**{name: getattr(role, name) for name in _OF_ROLE}, "waits": [_wait(wait) for wait in role.waits]}
                for role in live.roles
            ],
        },
        option=orjson.OPT_INDENT_2,
    )


def _wait(wait: LiveWait) -> dict[str, object]:
    return {
        "name": wait.name,
        "waitsFor": wait.waits_for,
        "ageSeconds": round(wait.age_s, 1),
        "deadlineSeconds": wait.deadline_s,
    }


_TELL_S = 5.0

HOT: Mapping[str, str] = {
    "algorithm.maxSteps": "max_steps",
    "algorithm.maxStaleness": "max_staleness",
    "rollout.ahead": "ahead",
    "rollout.maxConcurrentRollouts": "max_concurrent_rollouts",
}
"""Live field → its name in the call."""


def set_hot(run_dir: Path, changes: Mapping[str, Any]) -> dict[str, int]:
    """Tell the controller of the run in `run_dir`; returns all live fields as they are in force then.

    Raises ConfigError when no run goes on there, or when the controller refuses the values.
    """
    for field, value in changes.items():
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise ConfigError(f"{field} is a whole number, not {value!r}", fix=f"write {field}=2")
    return asyncio.run(_tell(RunLayout(run_dir.absolute()), {HOT[field]: value for field, value in changes.items()}))


async def _tell(layout: RunLayout, values: dict[str, int]) -> dict[str, int]:
    going_on(layout)
    job = ResolvedJob.load(layout.root)
    controller = job.endpoints.controller
    if not controller:
        raise ConfigError(f"the run in {layout.root} has no controller", fix="live fields are those of RL jobs")
    async with connect(controller, token_of(job, Outsider.OPERATOR)) as channel:
        stub = rollout_grpc.RolloutStub(channel)
        try:
            answer = await stub.SetHotFields(rollout.SetHotFieldsRequest(**values), timeout=_TELL_S)
        except grpc.aio.AioRpcError as error:
            raise_as(error)
    return {field: getattr(answer, name) for field, name in HOT.items()}
