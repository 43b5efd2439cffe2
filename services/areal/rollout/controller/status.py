"""The status message: what `areal status` and the live view show of the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from areal.net.status import idle_to_wire, kind_to_wire
from areal.rollout.controller import wire
from areal.rollout.controller.core import Controller
from areal.rollout.controller.idle import idle_of
from areal.v1 import common_pb2 as common
from areal.v1 import rollout_pb2 as rollout


def rollout_status(
    job: str, core: Controller, evaluations: Iterable[Mapping[str, Any]]
) -> rollout.GetRolloutStatusResponse:
    """Everything at once. `evaluations` are the finished ones, those before a restart included."""
    book, settings, tally, idle = core.book, core.settings, core.book.tally, idle_of(core)
    answer = rollout.GetRolloutStatusResponse(
        job=job,
        max_steps=core.max_steps,
        max_staleness=settings.max_staleness,
        max_concurrent_rollouts=settings.max_concurrent,
        trainer_step=core.desk.step,
        served_policy_id=core.fleet.served.policy_id if core.fleet.served else "",
        next_admission=book.next_admission,
        leased=core.last_round.in_work,
        complete_waiting=book.waiting_complete(),
        committed_group=book.committed,
        tombstones=dict(book.ranks.counts),
        reward_mean=tally.reward_mean,
        reward_sampled=tally.reward_sampled,
        tokens_total=core.crew.tokens_total,
        reserved_bytes=book.reserved * settings.bytes_per_group,
        budget_bytes=settings.budget_bytes,
        fleet=[wire.server_state(s.report, live=s.live, ready=s.ready) for s in core.fleet.servers.values()],
        idle_reason=idle.text if idle else "",
        idle_cause=idle_to_wire(idle.cause) if idle else rollout.IDLE_CAUSE_UNSPECIFIED,
        stalled=core.stalled,
        stalled_by=kind_to_wire(core.stalled_by) if core.stalled else common.FAULT_KIND_UNSPECIFIED,
        finished=core.done,
        staleness_violations_total=tally.violations,
        staleness_mean=tally.age_mean,
        staleness_max=tally.age_max,
        episode_ends=dict(tally.ends),
    )
    _workers(answer, core)
    _evaluations(answer, core, evaluations)
    return answer


def _workers(answer: rollout.GetRolloutStatusResponse, core: Controller) -> None:
    held: dict[str, int] = {}
    for index in core.book.open:
        holder = core.book.groups[index].worker
        held[holder] = held.get(holder, 0) + 1
    for name, worker in sorted(core.crew.workers.items()):
        answer.workers.add(
            worker_id=name,
            health=worker.health.value,
            groups=held.get(name, 0),
        )


def _evaluations(
    answer: rollout.GetRolloutStatusResponse, core: Controller, evaluations: Iterable[Mapping[str, Any]]
) -> None:
    for result in evaluations:
        answer.evaluations.add(
            policy_id=result["policy_id"],
            rows=result["rows"] + result.get("failed_rows", 0),
            mean=result["mean"],
            oldest_version=result["oldest_version"],
            newest_version=result["newest_version"],
        )
    for run in core.evaluations.runs:
        answer.evaluations.add(
            policy_id=run.policy_id,
            rows=run.rows,
            mean=run.mean,
            oldest_version=run.oldest_version,
            newest_version=run.newest_version,
        )
