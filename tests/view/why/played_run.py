"""Discrete-event simulation of a run in virtual time: servers with places, answers with lengths, the gate, a trainer.

Gives what `areal why --slow` reads. Written apart from the queueing model that it checks, and from the gate: here every
answer has a length and a place of its own, and what is in time is tried in the order of the dues.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from areal_view.why.bubbles import BusySpan, EpisodeTimes, Gate, StepTimes


@dataclass(frozen=True)
class Played:
    """What is played. Seconds are virtual."""

    batch: int = 8  # groups a step
    group: int = 4  # answers
    ahead: int = 2  # batches
    staleness: int = 2  # the bound
    admission_order: bool = True
    max_concurrent: int = 32  # groups
    servers: int = 1
    places: int = 8  # answers that a server makes at a time, each as fast as alone
    token_s: float = 0.02
    longest: int = 200  # tokens; lengths are skewed, as answers' are
    score_s: float = 0.05
    update_s: float = 3.0
    swap_s: float = 0.2
    steps: int = 60

    @property
    def gate(self) -> Gate:
        return Gate(self.batch, self.ahead, self.steps, self.staleness, self.admission_order)


def play(job: Played) -> tuple[list[StepTimes], list[EpisodeTimes], list[list[int]]]:
    """The trainer's rows, the samples' moments, and the groups of each step."""
    run = _Run(job)
    while len(run.rows) < job.steps:
        run.go_on()
    versions = [bisect_right(run.served, one.generated[0].began) - 1 for one in run.episodes]
    episodes = [replace(one, version=version) for one, version in zip(run.episodes, versions, strict=True)]
    return run.rows, episodes, run.batches


class _Run:
    def __init__(self, job: Played) -> None:
        self.job, self.random = job, random.Random(0)
        self.rows, self.episodes, self.batches = list[StepTimes](), list[EpisodeTimes](), list[list[int]]()
        self.events = [(0.0, -1, "served")]  # when, of which group or step, what
        self.places = [(0.0, place) for place in range(job.servers * job.places)]  # free from when
        self.served = list[float]()
        self.due, self.complete = dict[int, int](), set[int]()  # of groups in no batch
        self.admitted = self.running = 0
        self.free, self.taken = 0.0, 0  # the trainer

    def go_on(self) -> None:
        now, number, what = heapq.heappop(self.events)
        if what == "served":
            self.served.append(now)
        elif what == "complete":
            self.complete.add(number)
            self.running -= 1
        else:
            self.taken += 1
        if self.taken == len(self.batches) < self.job.steps:
            self.train(now)
        while self.may_start():
            self.start(now)

    def in_time(self, due: Iterable[int], step: int) -> bool:
        """Whether groups due by then are trained in time, in the order of their dues, from this step on."""
        return all(last >= step + place // self.job.batch for place, last in enumerate(sorted(due)))

    def may_start(self) -> bool:
        newest, job = len(self.served) - 1, self.job
        lead = self.admitted < job.batch * min(newest + job.ahead + 1, job.steps)
        due = [*self.due.values(), newest + job.staleness]
        return lead and self.running < job.max_concurrent and self.in_time(due, len(self.batches))

    def start(self, now: float) -> None:
        job, ended = self.job, 0.0
        for _ in range(job.group):
            at, place = heapq.heappop(self.places)
            began = max(at, now)
            tokens = 1 + int(job.longest * self.random.betavariate(1.5, 4.0))
            done = began + tokens * job.token_s
            heapq.heappush(self.places, (done, place))
            made, scored = [BusySpan(began, done)], [BusySpan(done, done + job.score_s)]
            server = f"s{place // job.places}"
            self.episodes.append(EpisodeTimes(self.admitted, server, made, scored, tokens=tokens))
            ended = max(ended, done + job.score_s)
        heapq.heappush(self.events, (ended, self.admitted, "complete"))
        self.due[self.admitted] = len(self.served) - 1 + job.staleness
        self.admitted += 1
        self.running += 1

    def train(self, now: float) -> None:
        """The next batch, unless it has to wait."""
        step, job = len(self.batches), self.job
        if job.admission_order:
            batch = [group for group in sorted(self.due)[: job.batch] if group in self.complete]
        else:
            batch = sorted(self.complete & self.due.keys(), key=lambda group: (self.due[group], group))[: job.batch]
            if not self.in_time((self.due[group] for group in self.due.keys() - self.complete), step + 1):
                return
        if len(batch) < job.batch:
            return
        for group in batch:
            del self.due[group]
        began, before = max(self.free, now), self.free
        self.free = began + job.update_s
        self.batches.append(batch)
        self.rows.append(
            StepTimes(step, self.free, self.free - before, {"wait": began - before, "train": job.update_s})
        )
        heapq.heappush(self.events, (began, step, "took"))
        heapq.heappush(self.events, (self.free + job.swap_s, step, "served"))


def second_half(rows: Sequence[StepTimes]) -> list[StepTimes]:
    """The rows in which the run goes evenly."""
    return list(rows[len(rows) // 2 :])
