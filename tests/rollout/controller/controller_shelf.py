"""The controller's book of groups by itself, and a scan of the ledger to compare it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from areal.ledger.values import COMPLETE, SampleMeta
from areal.rollout.contract.values import SampleDone
from areal.rollout.controller.book import Book
from areal.rollout.controller.decisions import Decision
from areal.rollout.controller.groups import GroupPhase, PromptGroup
from areal.rollout.controller.order import TrainOrder
from areal.rollout.controller.settings import ControllerSettings, TrainPosition
from controller_bench import SETTINGS

NOW = 100.0


def figures(reward: float = 0.0, *, oldest: int = 0, eta: int = 1) -> SampleMeta:
    return SampleMeta(1, reward, oldest, oldest, eta, 1, False, 0)


@dataclass
class View:
    """What a scan of the ledger shows."""

    low: int = 0
    committed: int = 0
    trainer_fence: int = 0
    batches: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    closed: Mapping[int, str] = field(default_factory=dict)
    samples: Mapping[int, Mapping[int, SampleMeta]] = field(default_factory=dict)


class Shelf:
    """A book, its position, and what it decided."""

    def __init__(
        self,
        settings: ControllerSettings = SETTINGS,
        *,
        tombstones: Mapping[int, str] | None = None,
        batches: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.position = TrainPosition(settings)
        self.said: list[Decision] = []
        self.order = TrainOrder(self.position, tombstones or {}, batches)
        self.book = Book(self.position, self.order, self.said.append)

    def admitted(self, count: int) -> list[PromptGroup]:
        made = [self.book.admit() for _ in range(count)]
        for group in made:
            self.order.grant(group, 0, self.position.settings.max_staleness)
        self.said.clear()
        return made

    def held(self, group: PromptGroup, worker: str = "w", working: tuple[int, ...] = (0, 1)) -> PromptGroup:
        group.worker, group.working = worker, set(working)
        return group

    def took(self, *groups: PromptGroup) -> None:
        """These are the next batch, and the trainer took it."""
        self.order.assign(groups)
        self.order.written += 1
        self.position.step += 1

    def closed(self, group: PromptGroup) -> PromptGroup:
        """Complete, and the ledger agreed."""
        for index in range(2):
            self.book.sample(SampleDone(group.index, index, float(index), 0, 0, 1))
        self.book.closed(NOW, self.book.epoch, group.index, COMPLETE, ())
        self.said.clear()
        assert group.phase is GroupPhase.CLOSED
        return group
