"""Discrete-event simulation of a run in virtual time: servers with places, answers with lengths, the gate, a trainer.

Gives what `areal why --slow` reads. Written apart from the queueing model that it checks: here every answer has a
length and a place of its own.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from areal_view.why.bubbles import BusySpan, EpisodeTimes, Gate, StepTimes


@dataclass(frozen=True)
class Played:
    """What is played. Seconds are virtual."""

    batch: int = 8  # groups a step
    group: int = 4  # answers
    staleness: int = 2
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
        return Gate(self.batch, self.staleness, self.steps)


def play(job: Played) -> tuple[list[StepTimes], list[EpisodeTimes]]:
    """The trainer's rows and the samples' moments."""
    random_ = random.Random(0)
    free = [(0.0, place) for place in range(job.servers * job.places)]
    served, rows, episodes = [0.0], list[StepTimes](), list[EpisodeTimes]()
    completed: list[float] = []
    ready_in_order = trainer = admitted = 0.0
    for step in range(job.steps):
        for number in range(step * job.batch, (step + 1) * job.batch):
            version = max(0, step - job.staleness)
            admitted = max(admitted, served[version])
            if number >= job.max_concurrent:
                admitted = max(admitted, sorted(completed)[number - job.max_concurrent])
            ends = []
            for _ in range(job.group):
                at, place = heapq.heappop(free)
                began = max(at, admitted)
                tokens = 1 + int(job.longest * random_.betavariate(1.5, 4.0))
                done = began + tokens * job.token_s
                heapq.heappush(free, (done, place))
                newest = max(v for v, when in enumerate(served) if when <= began)
                made, scored = [BusySpan(began, done)], [BusySpan(done, done + job.score_s)]
                episodes.append(EpisodeTimes(number, f"s{place // job.places}", made, scored, newest, tokens))
                ends.append(done + job.score_s)
            completed.append(max(ends))
            ready_in_order = max(ready_in_order, max(ends))
        began, before = max(trainer, ready_in_order), trainer
        trainer = began + job.update_s
        rows.append(StepTimes(step, trainer, trainer - before, {"wait": began - before, "train": job.update_s}))
        served.append(trainer + job.swap_s)
    return rows, episodes


def second_half(rows: Sequence[StepTimes]) -> list[StepTimes]:
    """The rows in which the run goes evenly."""
    return list(rows[len(rows) // 2 :])
