"""State machine of one supervised child: takes events with their time, returns actions.

Owns the phases and every decision about starting, restarting, hanging and draining. Never starts a process, reads a
clock or writes a log: `supervise.ChildSupervisor` does, on its word.

    IDLE → STARTING → READY → COMPLETE | FAILED
              ↑          │ exit, hang
              └ BACKING_OFF            drain: → DRAINING → STOPPED

A member of a gang stays IDLE, and later BACKING_OFF, until it is told an epoch: only then do all members start.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from areal.errors import ArealError, Cause
from areal.net.heartbeat import doubled
from areal.processes.exits import ExitVerdict, ProcessExit, asked_to_stop, classify, describe

# ---- Restart budget of a child with exponential back-off. Pure
# A budget is a number of restarts in a sliding window: a role that dies once an hour is restarted without end, one that
# dies at every start stops the run soon. The wait doubles with each restart in the window and is short at first: a warm
# role should be back within seconds. A restart that somebody asked for uses nothing.


@dataclass(frozen=True)
class BudgetPolicy:
    """Limits of one child."""

    max_restarts: int = 5
    window_s: float = 600.0
    first_wait_s: float = 0.1
    max_wait_s: float = 5.0


_SHOWN = 80  # characters of a reason: an error's words may be long


@dataclass(frozen=True)
class RestartGrant:
    """The child may start again after `wait_s`."""

    wait_s: float


@dataclass(frozen=True)
class RestartsExhausted:
    """No restart is left; `reason` says which were used for what."""

    reason: str


class Budget:
    """Restarts of one child. Told the time, never asks for it."""

    def __init__(self, policy: BudgetPolicy) -> None:
        self._policy = policy
        self._used: deque[tuple[float, str]] = deque()

    def ask(self, now: float, reason: str, *, counted: bool = True) -> RestartGrant | RestartsExhausted:
        """Ask for one restart; a granted one is used if it is `counted`."""
        self._forget(now)
        policy = self._policy
        if counted and len(self._used) >= policy.max_restarts:
            used = f"all {policy.max_restarts} restarts in {policy.window_s:g} s are used ({self._reasons(reason)})"
            return RestartsExhausted(f"{reason}; {used}")
        wait = doubled(policy.first_wait_s, policy.max_wait_s, len(self._used))
        if counted:
            self._used.append((now, reason))
        return RestartGrant(wait)

    def warning(self, now: float) -> str:
        """Warning of what is used and for what, once that is half; empty before."""
        self._forget(now)
        policy, used = self._policy, len(self._used)
        if not used or 2 * used < policy.max_restarts:
            return ""
        return f"{used} of {policy.max_restarts} restarts in {policy.window_s:g} s are used ({self._reasons()})"

    def _forget(self, now: float) -> None:
        while self._used and self._used[0][0] <= now - self._policy.window_s:
            self._used.popleft()

    def _reasons(self, newest: str = "") -> str:
        used = Counter(why if len(why) <= _SHOWN else f"{why[:_SHOWN]}…" for _, why in self._used)
        if newest and self._used and all(why == newest for _, why in self._used):
            return "each for that"
        return "; ".join(f"{count}× {why}" for why, count in used.items()) or "none was allowed"


# ---- State machine of one supervised child: takes events with their time, returns actions


class ChildPhase(StrEnum):
    """Where a child is in its life."""

    IDLE = "idle"  # not started yet
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    COMPLETE = "complete"
    FAILED = "failed"
    DRAINING = "draining"
    STOPPED = "stopped"


_HUNG = "the stacks of its threads are at the end of its log"
TERMINAL = frozenset({ChildPhase.COMPLETE, ChildPhase.FAILED, ChildPhase.STOPPED})


class ProbeAnswer(StrEnum):
    """What a probe heard. Live and ready are different answers: a server without weights is live."""

    SILENT = "silent"
    LIVE = "live"
    READY = "ready"


class RestartBy(StrEnum):
    """Who restarts a child that died."""

    ITSELF = "in_place"
    EPOCH = "epoch"  # only `restart(epoch)`: a trainer gang, whose members must agree


class Action(StrEnum):
    """What the shell must do now."""

    START = "start"
    TERMINATE = "terminate"  # ask the child to stop
    KILL = "kill"  # end the child and everything it started


@dataclass(frozen=True)
class LifePolicy:
    """How one child is treated."""

    restart: RestartBy = RestartBy.ITSELF
    first_start: RestartBy = RestartBy.ITSELF  # EPOCH: not before `restart(epoch)`
    start_deadline_s: float = 120.0  # the first answer to a probe; torch takes 5–15 s to import on a loaded machine
    hang_s: float = 60.0  # silence after that; generous, because a loaded role must never be declared dead
    drain_s: float = 10.0
    regroup_s: float = 30.0  # for a new epoch: without the member that died, a gang can save nothing
    budget: BudgetPolicy = field(default_factory=BudgetPolicy)


class ChildCore:
    """One child. Methods return the actions to take, in order."""

    def __init__(self, policy: LifePolicy) -> None:
        self._policy = policy
        self._budget = Budget(policy.budget)
        self.phase = ChildPhase.IDLE
        self.since = 0.0
        self.epoch = 0
        self.starts = 0
        self.last_exit: ProcessExit | None = None
        self.reason = ""  # why this phase, for people
        self.awaits_epoch = False  # died, and only `restart(epoch)` starts it again
        self._heard: float | None = None
        self.wake_at: float | None = None  # when `tick` must be called at the latest
        self._killed_for = ""  # why we killed it ourselves
        self._next_epoch: int | None = None  # start again with it after the drain

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(0, self.starts - 1)

    def warning(self, now: float) -> str:
        """Warning of the restarts used, once that is half: the next ones end the run."""
        return "" if self.phase in TERMINAL else self._budget.warning(now)

    def start(self, now: float) -> list[Action]:
        """First start, or the wait for its epoch."""
        if self.phase is not ChildPhase.IDLE:
            return []
        if self._policy.first_start is RestartBy.EPOCH:
            self.awaits_epoch = True
            self._enter(ChildPhase.IDLE, now, "waits for its first epoch")
            return []
        return self._start(now)

    def probed(self, answer: ProbeAnswer, now: float) -> list[Action]:
        """A probe of the running child came back."""
        if self.phase not in (ChildPhase.STARTING, ChildPhase.READY) or self._killed_for:
            return []
        if answer is ProbeAnswer.SILENT:
            return self.tick(now)
        self._heard = now
        self.wake_at = now + self._policy.hang_s
        if answer is ProbeAnswer.READY and self.phase is ChildPhase.STARTING:
            self._enter(ChildPhase.READY, now, "")
        elif answer is ProbeAnswer.LIVE and self.phase is ChildPhase.READY:
            self._enter(ChildPhase.STARTING, now, "live, not ready")
        elif answer is ProbeAnswer.LIVE:
            self.reason = "live, not ready"
        return []

    def exited(self, code: int, tail: Sequence[str], now: float, error: ArealError | None = None) -> list[Action]:
        """The child and everything it started are gone; `error` is what it left."""
        self.wake_at = None
        if self.phase is ChildPhase.DRAINING:
            self.last_exit = ProcessExit(code, ExitVerdict.COMPLETE, f"stopped ({describe(code)})", Cause.STOPPED)
            if self._next_epoch is not None:
                self.epoch, self._next_epoch = self._next_epoch, None
                return self._start(now)
            self._enter(ChildPhase.STOPPED, now, self.reason)
            return []
        exit_ = classify(code, tail, error)
        if self._killed_for:
            exit_ = ProcessExit(code, ExitVerdict.RESTART, self._killed_for, Cause.ROLE_HUNG, _HUNG)
            self._killed_for = ""
        self.last_exit = exit_
        if exit_.verdict is ExitVerdict.COMPLETE:
            self._enter(ChildPhase.COMPLETE, now, "")
        elif exit_.verdict is ExitVerdict.REFUSED:
            self._enter(ChildPhase.FAILED, now, exit_.reason)
        elif self._policy.restart is RestartBy.EPOCH:
            self.awaits_epoch = True
            self._enter(ChildPhase.BACKING_OFF, now, f"{exit_.reason}; waits for a new epoch")
        elif isinstance(granted := self.ask_restart(exit_, now), RestartsExhausted):
            self._enter(ChildPhase.FAILED, now, granted.reason)
        else:
            self._enter(ChildPhase.BACKING_OFF, now, exit_.reason)
            self.wake_at = now + granted.wait_s
        return []

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self.wake_at is None or now < self.wake_at:
            return []
        if self.phase is ChildPhase.BACKING_OFF:
            return self._start(now)
        if self.phase is ChildPhase.DRAINING:
            self.wake_at = None
            self.reason = f"still there {now - self.since:.0f} s after it was asked to stop: killed"
            return [Action.KILL]
        if self.phase in (ChildPhase.STARTING, ChildPhase.READY) and not self._killed_for:
            self.wake_at = None
            self._killed_for = (
                f"no answer within {self._policy.start_deadline_s:g} s of its start"
                if self._heard is None
                else f"hung: no answer for {self._policy.hang_s:g} s"
            )
            return [Action.KILL]
        return []

    def restart(self, epoch: int, now: float) -> tuple[bool, list[Action]]:
        """Be running in `epoch`. Told twice is told once; an older epoch is refused."""
        if (
            epoch < self.epoch
            or self.phase is ChildPhase.STOPPED
            or (self.phase is ChildPhase.IDLE and not self.awaits_epoch)
        ):
            return False, []
        if self.phase is ChildPhase.DRAINING:
            if self._next_epoch is None:
                return False, []
            self._next_epoch = max(epoch, self._next_epoch)
            return True, []
        if epoch == self.epoch:
            return self.phase is not ChildPhase.IDLE, []
        if self.phase in (ChildPhase.STARTING, ChildPhase.READY):
            self._next_epoch = epoch
            self._killed_for = ""
            self._enter(ChildPhase.DRAINING, now, f"restarts in epoch {epoch}")
            self.wake_at = now + min(self._policy.regroup_s, self._policy.drain_s)
            return True, [Action.TERMINATE]
        self.epoch = epoch
        return True, self._start(now)

    def drain(self, grace_s: float | None, now: float) -> list[Action]:
        """Stop for good: ask, wait `grace_s`, kill."""
        self._next_epoch = None
        if self.phase in TERMINAL or self.phase is ChildPhase.DRAINING:
            return []
        if self.phase in (ChildPhase.IDLE, ChildPhase.BACKING_OFF):
            self.awaits_epoch = False
            self.wake_at = None
            self._enter(ChildPhase.STOPPED, now, "asked to stop while it was not running")
            return []
        self._killed_for = ""
        self._enter(ChildPhase.DRAINING, now, "asked to stop")
        self.wake_at = now + (self._policy.drain_s if grace_s is None else grace_s)
        return [Action.TERMINATE]

    def kill(self, now: float) -> list[Action]:
        """Stop for good, at once."""
        actions = self.drain(0.0, now)
        if self.phase is ChildPhase.DRAINING:
            self.wake_at = None
            return [Action.KILL]
        return actions

    def _start(self, now: float) -> list[Action]:
        self.awaits_epoch = False
        self._heard = None
        self.starts += 1
        self._enter(ChildPhase.STARTING, now, "")
        self.wake_at = now + self._policy.start_deadline_s
        return [Action.START]

    def ask_restart(self, exit_: ProcessExit, now: float) -> RestartGrant | RestartsExhausted:
        """Ask the budget for a restart after `exit_`; one that somebody asked for by a signal uses nothing."""
        return self._budget.ask(now, exit_.reason, counted=not asked_to_stop(exit_.code))

    def _enter(self, phase: ChildPhase, now: float, reason: str) -> None:
        self.phase, self.since, self.reason = phase, now, reason
