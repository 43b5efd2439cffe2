"""Metrics, named waits and progress of the controller, read off its core. Decides nothing."""

from contextlib import ExitStack

from areal.observe.live import Idle, IdleCause
from areal.observe.metrics import RoleMetrics
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.record.episode_ends import IN_FLIGHT, REPREFILLED, EpisodeEnd, TokenFate
from areal.rollout.controller.book import Book
from areal.rollout.controller.core import Controller
from areal.rollout.controller.groups import GroupPhase, PromptGroup
from areal.rollout.controller.tally import GroupLife

# Spans of the controller: a group from its first lease to its end, and how long it lay in the ledger.


def trace_life(traces: Traces, life: GroupLife) -> None:
    """A group was taken by the trainer, or ended untrained. The root of its trace: other roles hang theirs below it."""
    if not traces.wants(life.group):
        return
    root = traces.group(life.group)
    began = traces.wall(life.leased_at or life.closed_at)
    closed, ended = traces.wall(life.closed_at), traces.wall(life.ended_at)
    traces.emit(
        "group",
        began,
        ended,
        own=root,
        attributes={
            "group": life.group,
            "attempts": life.attempts,
            "outcome": life.reason or "taken",
            **({"step": life.step} if life.step >= 0 else {}),
        },
    )
    if life.leased_at:
        traces.emit("lease", began, closed, parent=root)
    if not life.reason:
        traces.emit("ledger", closed, ended, parent=root)


_PERIOD_S = 0.5


class Gauges:
    """Shows what the core holds, twice a second."""

    def __init__(
        self, metrics: RoleMetrics, waits: WaitRegistry, progress: ProgressCounter, traces: Traces = NO_TRACES
    ) -> None:
        self._metrics = metrics
        self._waits = waits
        self._progress = progress
        self._traces = traces
        self._shown = 0.0
        self._seen: dict[tuple[str, str], int] = {}
        self._waits_for: IdleCause | None = None
        self._wait = ExitStack()
        for reason in ("filtered", "rejected", "ended", "deadline", "poison", "infra"):
            metrics.counter("areal_tombstones_total", reason=reason)
        for outcome in ("complete", "tombstoned"):
            metrics.counter("areal_groups_total", outcome=outcome)
        for end in EpisodeEnd:
            metrics.counter("areal_episode_ends_total", end=end.value)
        for fate in TokenFate:
            metrics.counter("areal_generation_tokens_total", fate=fate.value)
        metrics.counter("areal_staleness_violations_total")

    def show(self, core: Controller, now: float) -> None:
        """Update everything if it is time."""
        if now - self._shown < _PERIOD_S:
            return
        self._shown = now
        book, settings, metrics = core.book, core.settings, self._metrics
        core.look_at_tokens(now)
        self._counts(book)
        metrics.gauge("areal_rollouts_inflight").set(core.last_round.in_work)
        metrics.gauge("areal_rollout_capacity").set(settings.max_concurrent)
        metrics.gauge("areal_gate_room_groups").set(core.last_round.room)
        metrics.gauge("areal_replay_bytes").set(len(book.groups) * settings.bytes_per_group)
        metrics.gauge("areal_replay_budget_bytes").set(settings.budget_bytes)
        metrics.gauge("areal_replay_ready_groups").set(book.waiting_complete())
        partial = sum(1 for index in book.open if book.groups[index].done)
        metrics.gauge("areal_replay_partial_groups").set(partial)
        if core.evaluations.recorded:
            newest = core.evaluations.recorded[-1]
            metrics.gauge("areal_evaluation_score").set(newest.mean)
            metrics.gauge("areal_evaluation_version").set(newest.version)
            for of_set, figures in {"": newest.figures, **newest.sets}.items():
                for name, value in figures.items():
                    metrics.gauge("areal_evaluation_figure", set=of_set, figure=name).set(value)
        idle = idle_of(core)
        self._progress.doing = idle.text if idle else f"{core.last_round.in_work} groups in work"
        self._progress.policy_id = core.fleet.served.policy_id if core.fleet.served else ""
        self._name_wait(idle)

    def _counts(self, book: Book) -> None:
        tally = book.tally
        for group, duration_s in tally.durations_s:
            exemplar = self._traces.exemplar(group)
            self._metrics.histogram("areal_rollout_duration_seconds").observe(duration_s, exemplar)
        tally.durations_s.clear()
        for life in tally.lives:
            trace_life(self._traces, life)
            if not life.reason:
                wait = self._metrics.histogram("areal_rollout_queue_wait_seconds")
                wait.observe(life.ended_at - life.closed_at, self._traces.exemplar(life.group))
        tally.lives.clear()
        closed = sum(tally.closed.values())
        self._progress.advance(self._new("progress", "", closed))
        tokens = tally.tokens.counts()
        self._metrics.gauge("areal_generation_tokens_in_flight").set(tokens[IN_FLIGHT])
        for name, label, counts in (
            ("areal_generation_tokens_total", "fate", {fate.value: tokens[fate] for fate in TokenFate}),
            ("areal_groups_total", "outcome", tally.closed),
            ("areal_tombstones_total", "reason", tally.tombstones),
            ("areal_episode_ends_total", "end", tally.ends),
        ):
            for value, count in counts.items():
                self._metrics.counter(name, **{label: value}).inc(self._new(name, value, count))
        for name, count in (
            ("areal_staleness_violations_total", tally.violations),
            ("areal_generation_reprefilled_tokens_total", tokens[REPREFILLED]),
        ):
            self._metrics.counter(name).inc(self._new(name, "", count))

    def _new(self, name: str, label: str, count: int) -> int:
        before, self._seen[name, label] = self._seen.get((name, label), 0), count
        return count - before

    def _name_wait(self, idle: Idle | None) -> None:
        """One wait a cause: its words change with every number in them."""
        cause = idle.cause if idle else None
        if idle and cause is self._waits_for:
            self._waits.reword("admission", idle.text)
        elif cause is not self._waits_for:
            self._wait.close()
            self._waits_for = cause
            if idle:
                self._wait.enter_context(self._waits.waiting("admission", idle.text))


# ---- The cause for which the controller admits nothing, with a sentence for people


def idle_of(core: Controller) -> Idle | None:
    """Why nothing is admitted now; None when the gate has room and somebody works."""
    settings, last = core.settings, core.last_round
    if core.done:
        return Idle(IdleCause.OVER, "the run is over")
    if core.stalled:
        return Idle(IdleCause.STALLED, core.stalled)
    if core.desk.finished:
        return Idle(IdleCause.LAST_EVALUATION, "the trainer has finished; the last evaluation is running")
    if core.fleet.served is None:
        return Idle(IdleCause.NO_WEIGHTS, "no weights are published yet: waiting for the trainer")
    if core.turns is not None and core.turns.training:
        text = f"the cards train: turn {core.turns.count}, {core.attention - core.turns.since:.0f} s"
        return Idle(IdleCause.TRAINING_TURN, text)
    states = core.fleet.states()
    if not states["ready"]:
        known = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count) or "none has reported"
        return Idle(
            IdleCause.NO_SERVER, f"no generation server is ready ({known}) with weights {core.fleet.served.policy_id}"
        )
    if not core.crew.live():
        return Idle(IdleCause.NO_WORKER, "no rollout worker is connected")
    if core.book.streak.bad_luck:
        return Idle(IdleCause.UNTRAINED_GROUPS, core.book.streak.bad_luck)
    if last.room_bytes == 0:
        share = len(core.book.groups) * settings.bytes_per_group / max(1, settings.budget_bytes)
        return Idle(IdleCause.BYTES_FULL, f"the byte budget is {share:.0%} full: waiting for a checkpoint to free it")
    if last.room == 0:
        return _closed(core)
    if last.waiting:
        text = f"{last.waiting} groups wait for a place at a worker or for another try"
        return Idle(IdleCause.NO_PLACE, text)
    return None


def _closed(core: Controller) -> Idle:
    """Why the gate has no room."""
    settings, last = core.settings, core.last_round
    if len(core.book.order.waiting) >= (core.max_steps - core.book.order.chosen) * settings.batch_groups:
        return Idle(IdleCause.ALL_ADMITTED, f"all groups of {core.max_steps} steps are admitted")
    if (working := last.in_work + last.waiting) >= settings.max_concurrent:
        return Idle(IdleCause.CONCURRENCY, f"{working} groups in work, as many as maxConcurrentRollouts allows")
    if (kept := core.evaluations.pinned) is not None and kept != core.fleet.served:
        text = f"the evaluation of version {kept.version} keeps the servers at it: evaluation.oneVersion asks for that"
        return Idle(IdleCause.ONE_VERSION, text)
    text = (
        f"the gate is closed at version {core.fleet.newest_version} with ahead {settings.lead}: "
        f"{core.book.waiting_complete()} complete groups wait for the trainer"
    )
    return Idle(IdleCause.GATE_CLOSED, text)


def batch_waits(core: Controller) -> str:
    """The group that keeps the next batch from being chosen, in words; empty when the trainer wants none."""
    book, order = core.book, core.book.order
    if not order.wanted:
        return ""
    waiting = [group for g in order.waiting if (group := book.groups[g]).due is not None]
    late = sorted((group for group in waiting if group.phase is not GroupPhase.CLOSED), key=PromptGroup.by_urgency)
    complete, batch = len(waiting) - len(late), core.settings.batch_groups
    if complete < batch or not late:
        return f"step {order.chosen} waits for {max(0, batch - complete)} of {batch} groups to be complete"
    first = late[0]
    return (
        f"step {order.chosen} waits for group {first.index}, due at step {first.due} (maxStaleness "
        f"{core.settings.max_staleness}): {len(first.done)} of {core.settings.group_size} samples are there, "
        f"the rest is {f'at {first.worker}' if first.worker else 'at no worker'}"
    )
