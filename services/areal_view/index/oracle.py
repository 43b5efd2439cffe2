"""Audit of one sample's tokens: what the trainer trained against what the servers journaled. Pure.

Every trained token must be one sampled token: the same id after the same ids fed, with the same log-probability,
version and temperature, and used once. What was sampled and not trained has a reason. Knows arrays only: it imports
nothing that makes, carries or trains a token.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Routes = NDArray[np.uint32]  # digests of the experts of the token before

EXAMPLES = 10  # faults that are told in words


class FaultOf(StrEnum):
    """What can be wrong with a token."""

    ID = "another id"
    LOGPROB = "another log-probability"
    VERSION = "another version"
    TEMPERATURE = "another temperature"
    ROUTES = "other experts than it was sampled with"
    UNSAMPLED = "trained, but no server sampled it there"
    TWICE = "trained twice"
    DROPPED = "left out of an answer that was taken"
    UNTOLD = "in a batch that the trainer did not journal"


class UntrainedReason(StrEnum):
    """Why a sampled token is not trained."""

    EVALUATION = "of an evaluation"
    MASKED = "masked from the loss"
    CUT = "of an answer that was cut off"
    NOT_TAKEN = "of an answer that no later call took up"
    OTHER_ATTEMPT = "of another attempt at the sample"
    NOT_IN_GROUP = "of a sample that its group closed without"
    IN_FLIGHT = "of a group that was not trained yet"
    TOMBSTONED = "of a group that ended untrained"


@dataclass(frozen=True, eq=False)
class JournalRequest:
    """One request, as its server journaled it."""

    request: str
    attempt: int
    fed: Ints  # [prompt]: what the engine continued
    ids: Ints  # [tokens]
    logprobs: Floats  # [tokens]
    versions: Ints  # [tokens]
    temperature: float
    whole: bool  # it came to an end of its own; otherwise its client may hold less of it
    routes: Routes | None = None  # [tokens]; None of a model without experts


@dataclass(frozen=True, eq=False)
class TrainedSequence:
    """One sequence of a batch. `versions` is −1 where nothing was sampled."""

    ids: Ints  # [tokens]
    logprobs: Floats  # [tokens]
    versions: Ints  # [tokens]
    trained: Bools  # [tokens]
    temperature: float
    routes: Routes | None = None  # [tokens]


@dataclass
class TokenReport:
    """Counts of tokens. `faults` by what is wrong, `untrained` by reason."""

    trained: int = 0
    equal: int = 0
    sampled: int = 0
    unwitnessed: int = 0  # trained, and sampled where a journal has a gap
    faults: Counter[FaultOf] = field(default_factory=Counter)
    untrained: Counter[str] = field(default_factory=Counter)
    gaps: list[str] = field(default_factory=list)  # why a journal is not whole
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every trained token that can be judged is right, and there was any."""
        return not self.faults and self.equal > 0

    def fault(self, what: FaultOf, tokens: int, where: str) -> None:
        """Count a fault and keep a few in words."""
        self.faults[what] += tokens
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{where}: {what}")

    def add(self, other: "TokenReport") -> None:
        """Count another part in."""
        self.trained += other.trained
        self.equal += other.equal
        self.sampled += other.sampled
        self.unwitnessed += other.unwitnessed
        self.faults += other.faults
        self.untrained += other.untrained
        self.examples += other.examples[: EXAMPLES - len(self.examples)]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"ok": self.ok, **vars(self)}


def compare(
    name: str, trained: Sequence[TrainedSequence], made: Sequence[JournalRequest], *, gaps: bool
) -> TokenReport:
    """Audits one sample, called `name`. `gaps`: journals are not whole, so a missing request proves nothing.

    A sample comes from one attempt: from the one that explains it best.
    """
    attempts: defaultdict[int, list[JournalRequest]] = defaultdict(list)
    for one in made:
        attempts[one.attempt].append(one)
    tried = {number: _compare(name, trained, requests, gaps) for number, requests in attempts.items()}
    if not tried:
        return _compare(name, trained, [], gaps)
    best = min(tried, key=lambda number: (sum(tried[number].faults.values()) + tried[number].unwitnessed, -number))
    report = tried[best]
    for number, requests in attempts.items():
        if number != best:
            tokens = sum(len(one.ids) for one in requests)
            report.sampled += tokens
            report.untrained[UntrainedReason.OTHER_ATTEMPT] += tokens
    return report


def _compare(name: str, trained: Sequence[TrainedSequence], made: Sequence[JournalRequest], gaps: bool) -> TokenReport:
    report = TokenReport(sampled=sum(len(one.ids) for one in made))
    uses = [np.zeros(len(one.ids), np.int32) for one in made]
    held = [np.zeros(len(one.ids), np.bool_) for one in made]
    for sequence in trained:
        report.trained += int(sequence.trained.sum())
        at, sampled = 0, sequence.trained | (sequence.versions >= 0)
        while at < len(sampled):
            if not sampled[at]:
                at += 1
                continue
            until = at + int(np.argmin(np.append(sampled[at:], False)))
            place = _request_at(sequence, at, made, uses)
            if place is None:
                at = _unexplained(report, name, sequence, at, until, made, gaps)
                continue
            end = min(until, at + len(made[place].ids))
            _judge(report, f"{name} token {at}", sequence, slice(at, end), made[place])
            uses[place][: end - at] += sequence.trained[at:end]
            held[place][: end - at] |= True
            at = end
    for one, used, kept in zip(made, uses, held, strict=True):
        _leftover(report, name, one, used, kept)
    return report


def _request_at(
    sequence: TrainedSequence, at: int, made: Sequence[JournalRequest], uses: Sequence[NDArray[np.int32]]
) -> int | None:
    """The request that was fed what stands before `at`: the one that agrees longest, if possible not used yet."""
    best, best_rank = None, (-1, False)
    for place, one in enumerate(made):
        if not _fed(one, sequence, at):
            continue
        both = min(len(one.ids), len(sequence.ids) - at)
        same = one.ids[:both] == sequence.ids[at : at + both]
        rank = (int(np.argmin(np.append(same, False))), not uses[place].any())
        if rank > best_rank:
            best, best_rank = place, rank
    return best


def _fed(one: JournalRequest, sequence: TrainedSequence, at: int) -> bool:
    """Whether a request continued exactly what stands before `at`."""
    return len(one.fed) == at and len(one.ids) > 0 and np.array_equal(one.fed, sequence.ids[:at])


def _unexplained(
    report: TokenReport, name: str, sequence: TrainedSequence, at: int, until: int, made: Sequence[JournalRequest],
    gaps: bool,
) -> int:  # fmt: skip
    """Tokens that nobody journaled, up to the next that somebody did; returns where that is."""
    end = next((place for place in range(at + 1, until) if any(_fed(one, sequence, place) for one in made)), until)
    tokens = int(sequence.trained[at:end].sum())
    if gaps:
        report.unwitnessed += tokens
    elif tokens:
        report.fault(FaultOf.UNSAMPLED, tokens, f"{name} tokens {at} to {end - 1}")
    return end


def _judge(report: TokenReport, where: str, sequence: TrainedSequence, part: slice, one: JournalRequest) -> None:
    """Compare tokens one by one; bits of log-probabilities, not their distance."""
    count = part.stop - part.start
    learned = sequence.trained[part]
    wrong = {
        FaultOf.ID: sequence.ids[part] != one.ids[:count],
        FaultOf.LOGPROB: sequence.logprobs[part].view(np.int32) != one.logprobs[:count].view(np.int32),
        FaultOf.VERSION: sequence.versions[part] != one.versions[:count],
        FaultOf.TEMPERATURE: np.full(count, sequence.temperature != one.temperature),
    }
    if one.routes is not None:
        known = np.zeros(count, np.uint32) if sequence.routes is None else sequence.routes[part]
        wrong[FaultOf.ROUTES] = known != one.routes[:count]
    good = learned.copy()
    for what, places in wrong.items():
        if tokens := int((places & learned).sum()):
            report.fault(what, tokens, f"{where} and on, request {one.request}")
        good &= ~places
    report.equal += int(good.sum())


def _leftover(report: TokenReport, name: str, one: JournalRequest, used: NDArray[np.int32], held: Bools) -> None:
    """Findings on a request's tokens that are not trained, and on those trained more than once."""
    if again := int(np.maximum(used - 1, 0).sum()):
        report.fault(FaultOf.TWICE, again, f"{name} request {one.request}")
        report.equal -= again
    report.untrained[UntrainedReason.MASKED] += int((held & (used == 0)).sum())
    left = int((~held).sum())
    if not left:
        return
    if not held.any():
        report.untrained[UntrainedReason.NOT_TAKEN] += left
    elif one.whole:
        report.fault(FaultOf.DROPPED, left, f"{name} request {one.request}")
    else:
        report.untrained[UntrainedReason.CUT] += left
