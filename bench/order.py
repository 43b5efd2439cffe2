"""Pace of the orders of training: the product's gate, grants and choice in a timed model of servers and a trainer.

    python bench/order.py [--seeds 10] [--laws light heavy] [--ahead 1 2 4] [--out FILE]

Servers decode b sequences at a + c·b + k·Σcontext seconds a token, swap weights together, and make their caches anew.
Lengths are lognormal and alike within a group. Each row is an order, beside the soft gate of the same `ahead`: the lead
alone, nothing bound, which trains tokens older than the bound. Constants are those that reproduce the published step
times of a 1.5B model on H800 (arXiv 2505.24298, figure 5c). Prints tokens a second, the ratio, the age of what was
trained, and in how many seeds the lengths trained differ from the law's (Kolmogorov-Smirnov, p < 0.05).
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from areal.ledger.gate import GatePolicy, WaitingGroup, Window, choose, grant, room
from scipy.stats import ks_2samp

LAWS = {"light": (4000.0, 0.6), "heavy": (2000.0, 1.4)}
"""Median and σ of a lognormal number of tokens."""
CAP = 27_648  # tokens of the longest answer
ALIKE = 0.687  # correlation of log-lengths within a group


@dataclass(frozen=True)
class Setting:
    """One run. `bound` None: the soft gate."""

    law: str
    ahead: int
    bound: int | None
    by_index: bool = False
    seed: int = 0
    servers: int = 12
    slots: int = 128
    trainers: int = 4
    batch_groups: int = 64
    group_size: int = 8
    steps: int = 40
    warm_up: int = (
        8  # steps that aren't measured: the first batches are in admission order, and what they left comes back
    )
    prompt: int = 300
    step_s: float = 0.01282  # of a decode step: fixed, a sequence, a token of context
    sequence_s: float = 7.57e-5
    context_s: float = 1e-8
    prefill_tokens_s: float = 120e3
    train_tokens_s: float = 35e3  # a trainer's GPU
    train_fixed_s: float = 5.0
    publish_s: float = 3.0
    load_s: float = 1.0
    score_s: float = 0.5
    score_tail_s: float = 2.0


@dataclass
class DecodedGroup:
    """A group on its way: tokens of its samples, the version that began it, samples that are missing."""

    index: int
    lengths: list[int]
    version: int = -1
    missing: int = 0

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass
class Server:
    """Sequences that decode together; `done` counts the tokens that each of them has had since the server began."""

    at: float = 0.0  # until when `done` is reckoned
    done: float = 0.0
    blocked_until: float = 0.0
    epoch: int = 0  # of the event that is announced
    running: list[tuple[float, int, DecodedGroup, float]] = field(default_factory=list)  # ends at, number, group, began
    context: float = 0.0  # Σ of (began − prompt): a sequence's context is done − that

    def rate(self, s: Setting) -> tuple[float, float]:
        """Seconds of the next token, and by how much each token after it takes longer."""
        size = len(self.running)
        context = size * self.done - self.context
        return s.step_s + s.sequence_s * size + s.context_s * context, s.context_s * size

    def advance(self, s: Setting, now: float) -> None:
        begin = max(self.at, self.blocked_until)
        if now > begin and self.running:
            first, more = self.rate(s)
            self.done += (math.sqrt(first * first + 2 * more * (now - begin)) - first) / more
        self.at = max(self.at, now)

    def next_end(self, s: Setting) -> float:
        first, more = self.rate(s)
        left = max(0.0, self.running[0][0] - self.done)
        return max(self.at, self.blocked_until) + first * left + more * left * left / 2


class Run:
    """A run of the model, to its last step."""

    def __init__(self, setting: Setting) -> None:
        self.s = setting
        self.random = np.random.default_rng(setting.seed)
        self.servers = [Server() for _ in range(setting.servers)]
        self.events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self.number = self.admitted = self.step = self.newest = 0
        self.now = 0.0
        self.training = False
        self.queue: deque[tuple[DecodedGroup, int]] = deque()
        self.waiting: dict[int, DecodedGroup] = {}  # admitted, in no batch
        self.due: Counter[int] = Counter()  # of them, by the last step that may train one
        self.leased = 0
        self.groups: dict[int, DecodedGroup] = {}
        self.ages: list[int] = []
        self.trained: list[list[DecodedGroup]] = []
        self.ends: list[float] = []
        endless = setting.batch_groups * setting.steps
        self.policy = GatePolicy(setting.batch_groups, setting.ahead, setting.steps, endless)

    def play(self) -> Run:
        self._fill()
        while len(self.ends) < self.s.steps:
            self.now, _, kind, about = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(*about)
        return self

    # ---- what happens

    def _sampled(self, place: int, epoch: int) -> None:
        server = self.servers[place]
        if epoch != server.epoch:
            return
        server.advance(self.s, self.now)
        end, _, group, began = heapq.heappop(server.running)
        server.done = max(server.done, end)
        server.context -= began
        self._announce(self.now + self.s.score_s + self.random.exponential(self.s.score_tail_s), "scored", group.index)
        self._fill()
        self._reckon(place)

    def _scored(self, index: int) -> None:
        self.groups[index].missing -= 1
        if not self.groups[index].missing:
            self.leased -= 1
            self._train()

    def _stepped(self) -> None:
        self.ends.append(self.now)
        self._announce(self.now + self.s.publish_s, "published", len(self.ends))

    def _published(self, version: int) -> None:
        self.training, self.newest = False, version
        for place, server in enumerate(self.servers):
            server.advance(self.s, self.now)
            again = (len(server.running) * server.done - server.context) / self.s.prefill_tokens_s
            server.blocked_until = max(server.blocked_until, self.now) + self.s.load_s + again
            self._reckon(place)
        self._fill()
        self._train()

    # ---- the product's decisions

    def _fill(self) -> None:
        """Give free slots the next samples; a group that begins asks the gate and the law."""
        free = [(len(server.running), place) for place, server in enumerate(self.servers)]
        free = [one for one in free if one[0] < self.s.slots]
        heapq.heapify(free)
        changed = set()
        while free and (self.queue or self._admit()):
            size, place = heapq.heappop(free)
            group, length = self.queue.popleft()
            server = self.servers[place]
            server.advance(self.s, self.now)
            self.number += 1
            began = server.done - self.s.prompt
            heapq.heappush(server.running, (server.done + length, self.number, group, began))
            server.context += began
            changed.add(place)
            if size + 1 < self.s.slots:
                heapq.heappush(free, (size + 1, place))
        for place in changed:
            self._reckon(place)

    def _admit(self) -> bool:
        if self.admitted >= self.s.batch_groups * self.s.steps:
            return False
        if not room(Window(self.step, len(self.waiting), self.leased, self.newest), self.policy):
            return False
        if self.s.bound is not None:
            earliest = self.step + len(self.waiting) // self.s.batch_groups if self.s.by_index else 0
            versions = range(self.newest, self.newest + 1)
            if grant(self.due, self.step, self.s.batch_groups, self.s.bound, versions, earliest) is None:
                return False
            self.due[self.newest + self.s.bound] += 1
        group = DecodedGroup(self.admitted, self._lengths(), self.newest, self.s.group_size)
        self.admitted += 1
        self.leased += 1
        self.waiting[group.index] = self.groups[group.index] = group
        self.queue.extend((group, length) for length in group.lengths)
        return True

    def _lengths(self) -> list[int]:
        median, spread = LAWS[self.s.law]
        shared, *own = self.random.standard_normal(self.s.group_size + 1)
        drawn = math.sqrt(ALIKE) * shared + math.sqrt(1 - ALIKE) * np.array(own)
        return np.clip(median * np.exp(spread * drawn), 64, CAP).astype(int).tolist()

    def _train(self) -> None:
        if self.training:
            return
        batch = self._batch()
        if batch is None:
            return
        groups = [self.waiting.pop(index) for index in batch]
        if self.s.bound is not None:
            self.due -= Counter(group.version + self.s.bound for group in groups)
        self.ages += [self.step - group.version for group in groups]
        self.trained.append(groups)
        self.step += 1
        self.training = True
        tokens = sum(group.tokens + self.s.group_size * self.s.prompt for group in groups)
        took = tokens / self.s.train_tokens_s / self.s.trainers + self.s.train_fixed_s
        self._announce(self.now + took, "stepped")

    def _batch(self) -> tuple[int, ...] | None:
        if self.s.bound is None:  # AReaL's: the oldest of what is complete
            complete = sorted((group.version, index) for index, group in self.waiting.items() if not group.missing)
            size = self.s.batch_groups
            return tuple(index for _, index in complete[:size]) if len(complete) >= size else None
        waiting = [
            WaitingGroup(index, group.version + self.s.bound, not group.missing)
            for index, group in self.waiting.items()
        ]
        by_index = self.s.by_index or self.step < self.s.bound
        return choose(waiting, self.step, self.s.batch_groups, by_index=by_index)

    def _reckon(self, place: int) -> None:
        server = self.servers[place]
        server.epoch += 1
        if server.running:
            self._announce(server.next_end(self.s), "sampled", place, server.epoch)

    def _announce(self, at: float, kind: str, *about: int) -> None:
        self.number += 1
        heapq.heappush(self.events, (at, self.number, kind, about))

    # ---- what it came to

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained a second after the warm-up, prompts too."""
        first = self.s.warm_up
        told = [group.tokens + self.s.group_size * self.s.prompt for batch in self.trained[first:] for group in batch]
        return sum(told) / (self.ends[-1] - self.ends[first - 1])


MEASURED = 40
"""Steps after the warm-up."""


def settings(laws: list[str], leads: list[int]) -> Iterator[tuple[str, Setting]]:
    for law in laws:
        for ahead in leads:
            soft = Setting(law, ahead, None, warm_up=8 * ahead, steps=8 * ahead + MEASURED)
            yield "soft gate", soft
            yield "admission, bound = ahead", replace(soft, bound=ahead, by_index=True)
            for times in (1, 2, 3, 4):
                yield f"deadline, bound = {times} × ahead", replace(soft, bound=times * ahead)
    for law in laws:  # the same bound with half the lead: what a job that names a bound alone gets
        for bound in (4, 8):
            admission = Setting(law, bound, bound, by_index=True, warm_up=2 * bound, steps=2 * bound + MEASURED)
            yield f"admission, bound {bound}", admission
            yield f"deadline, bound {bound}", replace(admission, ahead=bound // 2, by_index=False)


def measured(name: str, setting: Setting, seeds: int) -> dict[str, object]:
    runs = [Run(replace(setting, seed=seed)).play() for seed in range(seeds)]
    ages = [np.array(run.ages[setting.warm_up * setting.batch_groups :]) for run in runs]
    reference = Run(replace(setting, seed=10_000, steps=1))
    law = [reference._lengths()[0] for _ in range(20_000)]
    trained = [[group.lengths[0] for batch in run.trained for group in batch] for run in runs]
    different = sum(bool(ks_2samp(lengths, law).pvalue < 0.05) for lengths in trained)
    limit = setting.bound if setting.bound is not None else setting.ahead
    return {
        "order": name, "law": setting.law, "ahead": setting.ahead, "bound": setting.bound,
        "tokens_per_s": float(np.mean([run.tokens_per_s for run in runs])),
        "spread": float(np.std([run.tokens_per_s for run in runs]) / math.sqrt(seeds)),
        "age_mean": float(np.mean([one.mean() for one in ages])), "age_max": int(max(one.max() for one in ages)),
        "older_than_bound": float(np.mean([(one > limit).mean() for one in ages])),
        "lengths_differ": different, "seeds": seeds,
    }  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", type=int, default=10)
    asked.add_argument("--laws", nargs="+", default=list(LAWS), choices=list(LAWS))
    asked.add_argument("--ahead", nargs="+", type=int, default=[1, 2, 4])
    asked.add_argument("--out", type=Path, default=Path("bench/results/order.json"))
    options = asked.parse_args()
    rows: list[dict[str, object]] = []
    print(f"{'law':<6}{'order':<32}{'tokens/s':>9}{'ratio':>7}{'age':>6}{'most':>5}{'older':>7}{'lengths':>9}")
    soft = 1.0
    for name, setting in settings(options.laws, options.ahead):
        row = measured(name, setting, options.seeds)
        pace = float(str(row["tokens_per_s"]))
        if name.startswith(("soft", "admission, bound ")) and "=" not in name:
            soft = pace
            print()
        row["ratio"] = pace / soft
        rows.append(row)
        print(
            f"{setting.law:<6}{name:<32}{pace:>9,.0f}{pace / soft:>7.2f}{row['age_mean']:>6.1f}{row['age_max']:>5}"
            f"{row['older_than_bound']:>7.0%}{row['lengths_differ']:>5} of {options.seeds}",
            flush=True,
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"setting": asdict(Setting("light", 1, 1)), "rows": rows}, indent=1) + "\n")
    print(f"\n{options.out}")


if __name__ == "__main__":
    main()
