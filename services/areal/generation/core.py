"""State machine of a generation agent: which weights to take, when to retry refused ones, who may sample.

Owns the facts about one engine (what it holds, whether that passed its canary) and the rules over them. Pure: it is
told what has happened, and the time, and answers. It never talks to an engine, a file or a network.
"""

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from areal.cards import ServerPhase
from areal.values.policy import NOTHING, PolicyId

FIRST_RETRY_S = 0.5  # a torn read on a network volume heals within this
LAST_RETRY_S = 8.0  # each try of a version that fails its canary interrupts generation


@dataclass(frozen=True)
class WantedVersion:
    """A version that the controller wants servers to hold."""

    policy: PolicyId
    path: Path
    digest: str
    rollback: bool = False


@dataclass(frozen=True)
class VersionRefusal:
    """The newest version that was not taken, how often it was tried, why, and when it is tried again."""

    policy: PolicyId
    tries: int
    reason: str
    retry_at: float


class RequestEntry(Enum):
    """What happens to a request that wants to start."""

    START = auto()
    BELOW_FLOOR = auto()  # this server is too old for it
    UNREADY = auto()  # what the engine holds is not proven, or there is no engine
    DRAINING = auto()


def takes(held: PolicyId, candidate: PolicyId) -> bool:
    """Whether a server that holds `held` takes `candidate`: any policy of a higher fence, or a later one of its own.

    A rollback is published under a higher fence, so the version may fall; within a fence it never does.
    """
    return candidate.fence > held.fence or (candidate.fence == held.fence and candidate.version > held.version)


def retry_delay_s(tries: int) -> float:
    """Seconds to wait after the `tries`-th refusal of a version."""
    return float(min(FIRST_RETRY_S * 2 ** (tries - 1), LAST_RETRY_S))


class AgentCore:
    """The state of one server. Times are a monotonic clock's, in seconds."""

    def __init__(self, *, shared: bool = False) -> None:
        """`shared`: its cards are the trainer's too, by turns. It begins asleep, until it is told."""
        self.engine_up = False
        self.draining = False
        self.held = NOTHING  # what the engine's weights are
        self.proven = False  # the canary passed for `held`
        self.accepted: WantedVersion | None = None  # the last version whose canary passed
        self.wanted: WantedVersion | None = None
        self.refused: VersionRefusal | None = None
        self.phase = ServerPhase.ASLEEP if shared else ServerPhase.AWAKE
        self._turn = 0  # of the newest order
        self._sleeps = shared

    # ---- what happened

    def order(self, turn: int, *, sleep: bool) -> bool:
        """Whose turn on shared cards it is: the controller says so again and again. Whether there is something to do.

        An order of an older turn is late, and ignored.
        """
        if turn and turn >= self._turn:
            self._turn, self._sleeps = turn, sleep
        return self.switch() is not None

    def want(self, wanted: WantedVersion) -> None:
        """The controller said what to hold; it says so again and again."""
        self.wanted = wanted

    def engine_started(self, holds: WantedVersion | None) -> None:
        """The engine answers; `holds` is the version it was started from, None the start model."""
        self.engine_up = True
        self.held = holds.policy if holds is not None else NOTHING
        self.proven = False

    def engine_lost(self) -> None:
        """The engine died or is being restarted."""
        self.engine_up = False
        self.proven = False

    def loaded(self, policy: PolicyId) -> None:
        """The engine's weights are now those of `policy`, as far as it says."""
        self.held = policy
        self.proven = False

    def accept(self, wanted: WantedVersion) -> None:
        """The engine holds `wanted` and its canary passed."""
        self.held = wanted.policy
        self.proven = True
        self.accepted = wanted
        if self.refused is not None and not takes(wanted.policy, self.refused.policy):
            self.refused = None

    def refuse(self, policy: PolicyId, reason: str, now: float) -> VersionRefusal:
        """`policy` was not taken, or did not pass its canary."""
        known = self.refused is not None and self.refused.policy == policy
        tries = self.refused.tries + 1 if known and self.refused is not None else 1
        self.refused = VersionRefusal(policy, tries, reason, now + retry_delay_s(tries))
        return self.refused

    # ---- answers

    @property
    def version(self) -> int:
        """Of what the engine holds; −1 without weights of a policy."""
        return self.held.version

    @property
    def ready(self) -> bool:
        """Whether the canary passed for the version that a living engine holds."""
        return self.engine_up and self.proven and self.version >= 0 and self.phase is ServerPhase.AWAKE

    @property
    def sleeps(self) -> bool:
        """Whether the newest order is to sleep."""
        return self._sleeps

    def switch(self) -> ServerPhase | None:
        """The phase to go to now, if it is another one."""
        wanted = ServerPhase.ASLEEP if self._sleeps else ServerPhase.AWAKE
        return None if wanted is self.phase else wanted

    @property
    def newest(self) -> WantedVersion | None:
        """What to wake with: the version that is wanted, unless it was refused, or the last one that was good."""
        wanted, accepted = self.wanted, self.accepted
        if wanted is None or (self.refused is not None and self.refused.policy == wanted.policy):
            return accepted
        return wanted if accepted is None or takes(accepted.policy, wanted.policy) else accepted

    def due(self, now: float) -> WantedVersion | None:
        """The version to take now, if any."""
        wanted = self.wanted
        if wanted is None or not self.engine_up or self.draining or self.phase is not ServerPhase.AWAKE:
            return None
        if not takes(self.held if self.proven else NOTHING, wanted.policy):
            return None
        refused = self.refused
        if refused is not None and refused.policy == wanted.policy and now < refused.retry_at:
            return None
        return wanted

    def next_look_s(self, now: float) -> float | None:
        """Seconds until a refused version is tried again; None when nothing waits for time to pass."""
        if self.refused is None or self.wanted is None or self.refused.policy != self.wanted.policy:
            return None
        return max(0.0, self.refused.retry_at - now)

    def entry(self, floor: int) -> RequestEntry:
        """Whether a request with this floor may start now. Asked under the swap lock."""
        if self.draining:
            return RequestEntry.DRAINING
        if not self.ready:
            return RequestEntry.UNREADY
        return RequestEntry.START if self.version >= floor else RequestEntry.BELOW_FLOOR
