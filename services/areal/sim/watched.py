"""The controller's core under watch: what must not change an input of somebody who has no say."""

from __future__ import annotations

from collections.abc import Callable

from areal.rollout.contract.values import WorkerReport
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.groups import Phase
from areal.rollout.controller.inputs import Input, TrainerBeat, WorkerBeat
from areal.rollout.controller.settings import ControllerSettings


class WatchedController(Controller):
    """`blame` is told of every promise that an input breaks at once."""

    def __init__(
        self, settings: ControllerSettings, rebuilt: Rebuilt, now: float, blame: Callable[[str], None]
    ) -> None:
        super().__init__(settings, rebuilt, now)
        self._blame = blame

    def take(self, item: Input, now: float) -> None:
        """As the core takes it."""
        match item:
            case WorkerBeat(report):
                self._worker_beat(item, report, now)
            case TrainerBeat(report) if report.fence < self.desk.fence:
                before = (self.book.committed, self.desk.finished)
                super().take(item, now)
                if before != (self.book.committed, self.desk.finished):
                    self._blame(f"promise 5: the beat of trainer f{report.fence} counted after f{self.desk.fence}")
            case _:
                super().take(item, now)

    def _worker_beat(self, item: Input, report: WorkerReport, now: float) -> None:
        """A worker's word about another one's group changes nothing; what it stored does."""
        told = {failure.group for failure in report.news.failures} | set(report.news.released)
        told -= {done.group for done in report.news.done}
        others = {
            index: (group.worker, group.infra_tries)
            for index in told
            if (group := self.book.groups.get(index)) is not None
            and group.phase is Phase.OPEN
            and group.worker not in ("", report.worker_id)
        }
        super().take(item, now)
        for index, before in others.items():
            group = self.book.groups.get(index)
            if group is None or group.phase is not Phase.OPEN or (group.worker, group.infra_tries) != before:
                self._blame(f"promise 5: {report.worker_id} changed group {index}, which {before[0]} holds")
