"""Pages about jobs of a cluster: the list of RLJobs, and one RLJob. Pure: objects of the API server in, values out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from areal.spec.status import ConditionEntry, FailureEntry, IdleStatus, JobStatus, RoleStatus
from areal_operator.kube.resources import Json
from pydantic import ValidationError

from areal_view.pages.rendering import age

_UNSEEN = "Pending"


@dataclass(frozen=True)
class JobLine:
    """A job in the list."""

    namespace: str
    name: str
    state: str
    step: int | None
    max_steps: int | None
    reward: float | None
    policy_version: int | None
    servers: str  # ready of wanted
    restarts: int
    why: str  # why nothing is trained now; empty while something is
    age: str


@dataclass(frozen=True)
class JobPage:
    """One job. `address` is its own page's, where the chart was told how to make it and the job has one."""

    line: JobLine
    facts: Sequence[tuple[str, str]]
    idle: IdleStatus | None
    conditions: Sequence[ConditionEntry]
    roles: Sequence[RoleStatus]
    failures: Sequence[FailureEntry]  # the newest first
    address: str


def lines_of(objects: Iterable[Json], now: datetime) -> list[JobLine]:
    """The jobs, the newest first."""
    newest = sorted(objects, key=lambda one: str(one["metadata"].get("creationTimestamp", "")), reverse=True)
    return [line_of(one, now) for one in newest]


def line_of(found: Json, now: datetime) -> JobLine:
    """A job in one line."""
    status, metadata = _status(found), found["metadata"]
    progress, generation = status.progress, next((one for one in status.roles if one.name == "generation"), None)
    return JobLine(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        state=status.summary or _UNSEEN,
        step=progress.step if progress else None,
        max_steps=progress.max_steps if progress else None,
        reward=progress.reward if progress else None,
        policy_version=progress.policy_version if progress else None,
        servers=f"{generation.ready} of {generation.desired}" if generation and generation.desired else "",
        restarts=status.attempts.restarts if status.attempts else 0,
        why=status.idle.sentence if status.idle else "",
        age=_since(str(metadata.get("creationTimestamp", "")), now),
    )


def page_of(found: Json, now: datetime, address: str) -> JobPage:
    """One job. `address` is a template with `{name}` and `{namespace}`; empty: none."""
    status, line = _status(found), line_of(found, now)
    shown = bool((found.get("spec", {}).get("observability") or {}).get("view"))
    return JobPage(
        line=line,
        facts=_facts(status, line, now),
        idle=status.idle,
        conditions=status.conditions,
        roles=[one for one in status.roles if one.desired],
        failures=status.failures[::-1],
        address=address.replace("{name}", line.name).replace("{namespace}", line.namespace) if shown else "",
    )


def _facts(status: JobStatus, line: JobLine, now: datetime) -> list[tuple[str, str]]:
    found = [("age", line.age), ("restarts of the trainers", str(line.restarts))]
    progress = status.progress
    if progress is not None:
        figures: list[tuple[str, Any]] = [
            ("reward of the last step", progress.reward),
            ("staleness, versions", progress.staleness),
            ("policy version", progress.policy_version),
            ("oldest version on a server", progress.oldest_served_version),
            ("groups trained", progress.groups_trained),
        ]
        found += [(name, f"{value:g}") for name, value in figures if value is not None]
        if progress.last_report_time is not None and status.completion_time is None:
            found.append(("newest step, made", f"{age((now - progress.last_report_time).total_seconds())} ago"))
        if progress.estimated_remaining_seconds is not None:
            found.append(("left", age(progress.estimated_remaining_seconds)))
    if status.checkpoint is not None:
        found.append(("checkpoint", f"of step {status.checkpoint.step}"))
    if status.audit is not None:
        found.append(("audit", status.audit.message or f"{status.audit.lost} lost, {status.audit.duplicated} twice"))
    return found


def _status(found: Json) -> JobStatus:
    """Status that the operator wrote; empty where that can't be read."""
    try:
        return JobStatus.model_validate(found.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return JobStatus()


def _since(time: str, now: datetime) -> str:
    try:
        return age((now - datetime.fromisoformat(time).astimezone(UTC)).total_seconds())
    except ValueError:
        return ""
