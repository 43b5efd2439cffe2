"""Scale model: what a job's step takes on N GPUs, and which split between generation and training is best. Pure.

Constants are measured: those of a run (`RunSpeeds`), or of a row of the table (`CardSpeeds`), which gives a decode step
of b sequences as fixed + b·sequence + b·context. What a split makes of them is played by the queueing model (`pace`),
with the ledger's own gate and order. How full a server is follows from its throughput (Little's law): with more servers
for the same batch each has less company, so a long answer ends sooner and a token costs more.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist, fmean

from areal.yaml_file.table import read_table

from areal_view.why.pace import Constants, Pace, play

_DRAWN = 1024  # groups whose lengths are drawn
_ROUNDS = 5  # until the company agrees with the pace
_PLACES = 64  # splits that are looked at, at most


@dataclass(frozen=True)
class Workload:
    """What a step asks for."""

    batch: int  # groups
    group_size: int
    longest: int  # tokens of an answer, at most
    ahead: int  # batches
    staleness: int  # versions, the bound
    admission_order: bool
    max_concurrent: int  # groups


@dataclass(frozen=True)
class Split:
    """GPUs of each side, and what the model says of them. `training` 0: all do both by turns, at η 0."""

    generation: int
    training: int
    step_s: float
    tokens_per_s: float  # trained; 0 where lengths aren't known
    generation_waits: float  # shares of the time
    trainer_waits: float
    age: float  # versions, the mean of the oldest token of each group


@dataclass(frozen=True)
class CardSpeeds:
    """A model on a card. Lengths are lognormal, alike within a group."""

    name: str
    source: str
    gpus: int  # of the measurement
    server_gpus: int
    slots: int
    step_s: float  # of a decode step: fixed, a sequence, a token of context
    sequence_s: float
    context_s: float
    prefill_tokens_s: float  # of a server
    train_tokens_s: float  # of a GPU
    fixed_s: float  # of each step: optimizer, publication
    load_s: float
    switch_s: float
    median_tokens: float
    spread: float
    alike: float
    prompt_tokens: float = 300.0
    score_s: float = 2.5


CARDS = tuple(CardSpeeds(**card) for card in read_table("areal_view.why", "cards.yaml"))


@dataclass(frozen=True)
class AnswerLaw:
    """Speeds of a card at a job's lengths, drawn once."""

    card: CardSpeeds
    work: Workload
    groups: Sequence[Sequence[float]]

    def synchronous(self) -> "AnswerLaw":
        return replace(self, work=replace(self.work, ahead=0, staleness=0))

    @property
    def server_gpus(self) -> int:
        return self.card.server_gpus

    @property
    def switch_s(self) -> float:
        return self.card.switch_s

    @cached_property
    def mean(self) -> float:
        return fmean(length for group in self.groups for length in group)

    @cached_property
    def context(self) -> float:
        """Of a sequence at a random moment of its decoding, which a long one has more of."""
        squares = fmean(length * length for group in self.groups for length in group)
        return self.card.prompt_tokens + squares / (2 * self.mean)

    @property
    def tokens(self) -> float:
        return self.work.batch * self.work.group_size * (self.mean + self.card.prompt_tokens)

    def _token_s(self, company: float) -> float:
        return self.card.step_s + company * (self.card.sequence_s + self.card.context_s * self.context)

    def _most(self, servers: int) -> float:
        groups = min(self.work.max_concurrent, self.work.batch * (self.work.ahead + 1))
        return min(self.card.slots, self.work.group_size * groups / servers)

    def company(self, servers: int, step_s: float) -> float:
        """Solves b = rate · length · token_s(b) for b."""
        arrivals = self.work.batch * self.work.group_size * self.mean / (servers * step_s)
        busy = arrivals * (self._token_s(1.0) - self._token_s(0.0))
        return self._most(servers) if busy >= 1 else min(self._most(servers), arrivals * self.card.step_s / (1 - busy))

    def constants(self, servers: int, trainers: int, company: float | None) -> Constants:
        """`trainers`: GPUs. `company`: sequences that a server decodes together, the mean; None: all its slots."""
        card, work, most = self.card, self.work, self._most(servers)
        alone = self._token_s(most if company is None else company)
        again = 0.0 if work.ahead == 0 else servers * ((company or most) * self.context / card.prefill_tokens_s)
        token_s = self._token_s(most) / most + card.prompt_tokens / self.mean / card.prefill_tokens_s
        return Constants(
            work.batch, work.ahead, work.staleness, work.admission_order, work.max_concurrent, servers,
            work.group_size * self.mean * token_s, [max(group) * alone + card.score_s for group in self.groups],
            [self.tokens / (card.train_tokens_s * trainers) + card.fixed_s], card.load_s, 0.0, again,
        )  # fmt: skip


def drawn(card: CardSpeeds, work: Workload) -> AnswerLaw:
    """Lengths of groups: what a group has in common by quantiles, so that the mean is the law's; the rest by a seed."""
    rest = random.Random(1)
    shared = [NormalDist().inv_cdf((rank + 0.5) / _DRAWN) for rank in range(_DRAWN)]
    rest.shuffle(shared)
    common, own = math.sqrt(card.alike) * card.spread, math.sqrt(1 - card.alike) * card.spread

    def length(place: float) -> float:
        return min(work.longest, card.median_tokens * math.exp(common * place + own * rest.gauss(0.0, 1.0)))

    return AnswerLaw(card, work, [[length(place) for _ in range(work.group_size)] for place in shared])


@dataclass(frozen=True)
class RunSpeeds:
    """A run's own constants. Its servers are taken to be as full as they were."""

    measured: Constants
    trainers: int
    server_gpus: int
    fixed_s: float  # of each step, whatever it has
    tokens: float
    switch_s: float = 0.0

    def synchronous(self) -> "RunSpeeds":
        return replace(self, measured=replace(self.measured, ahead=0, staleness=0))

    def company(self, servers: int, step_s: float) -> float:
        return 0.0

    def constants(self, servers: int, trainers: int, company: float | None) -> Constants:
        part = self.trainers / trainers
        work_s = [self.fixed_s + max(0.0, one - self.fixed_s) * part for one in self.measured.work_s]
        return replace(self.measured, servers=servers, work_s=work_s)


Speeds = AnswerLaw | RunSpeeds  # Measured constants from which those of another number of GPUs follow


def fixed_and_error(tokens: Sequence[float], work_s: Sequence[float]) -> tuple[float, float]:
    """Seconds of a step without a token, of a line through the odd steps; and its mean relative error on the even
    ones, which it has not seen. The line is flat where steps are too alike to tell."""
    xs, ys = tokens[1::2], work_s[1::2]
    if not xs:
        return 0.0, math.inf
    x, y = fmean(xs), fmean(ys)
    square = sum((one - x) ** 2 for one in xs)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / square if square > (0.05 * x) ** 2 else 0.0
    fixed = min(max(0.0, y - slope * x), min(ys)) if slope > 0 else 0.0
    slope = (y - fixed) / x if x else 0.0
    errors = [abs(fixed + slope * a - b) / b for a, b in zip(tokens[::2], work_s[::2], strict=True) if b > 0]
    return fixed, fmean(errors) if errors else math.inf


def _played(speeds: Speeds, servers: int, trainers: int) -> tuple[Pace, Constants]:
    company: float | None = None
    for _ in range(_ROUNDS):
        c = speeds.constants(servers, trainers, company)
        pace = play(c)
        empty = fmean(c.work_s) + c.swap_s if c.ahead == 0 else 0.0  # servers, while the trainer trains
        found = speeds.company(servers, pace.step_s - empty)
        if company is not None and abs(found - company) < 1.0:
            break
        company = found if company is None else (company + found) / 2
    return pace, c


def split(speeds: Speeds, generation: int, training: int) -> Split:
    """What `generation` + `training` GPUs do."""
    servers = max(1, generation // speeds.server_gpus)
    pace, c = _played(speeds, servers, training)
    busy = (c.batch * c.generation_s + c.evaluation_s) / servers
    return Split(
        generation, training, pace.step_s, speeds.tokens / pace.step_s, max(0.0, 1 - busy / pace.step_s),
        max(0.0, 1 - fmean(c.work_s) / pace.step_s), pace.age,
    )  # fmt: skip


def by_turns(speeds: Speeds, gpus: int) -> Split:
    """Synchronous training: every GPU generates a batch, then every GPU trains it."""
    servers = max(1, gpus // speeds.server_gpus)
    pace, c = _played(speeds.synchronous(), servers, gpus)
    step_s = pace.step_s + 2 * speeds.switch_s
    return Split(
        gpus, 0, step_s, speeds.tokens / step_s, 1 - c.batch * c.generation_s / servers / step_s,
        1 - fmean(c.work_s) / step_s, 0.0,
    )  # fmt: skip


def splits(speeds: Speeds, gpus: int) -> Iterator[tuple[int, float]]:
    """Generation's GPUs of each split that is looked at, with the seconds below which its step can't get."""
    unit = speeds.server_gpus
    for generation in range(unit, gpus, unit * max(1, gpus // (unit * _PLACES))):
        servers = generation // unit
        c = speeds.constants(servers, gpus - generation, None)
        yield generation, max((c.batch * c.generation_s + c.evaluation_s) / servers, fmean(c.work_s))


def best(speeds: Speeds, gpus: int) -> Split:
    """The fastest split. Raises ValueError where there is none."""
    found = sorted(splits(speeds, gpus), key=lambda one: one[1])[:3]
    if not found:
        raise ValueError(f"{gpus} GPUs don't split into a server of {speeds.server_gpus} and a trainer")
    return min((split(speeds, one, gpus - one) for one, _ in found), key=lambda one: one.step_s)
