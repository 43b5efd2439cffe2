"""One trainer from start to end, whatever its batches come from: restore, begin, train.

Owns the order of a start, which every promise about restarts hangs on: the checkpoint decides where the run is, then a
fence is taken, the checkpoint is loaded, evidence of the start is on disk, and only then a batch is taken.
"""

import threading
from contextlib import ExitStack
from typing import Protocol

from areal.errors import ExitCode
from areal.ledger.evidence import Exit
from areal.observe.waits import WaitRegistry

from areal_trainer.blame import blamed
from areal_trainer.checkpoint.catalog import FoundCheckpoint
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.control import AskedToStop
from areal_trainer.desk import Desk, TrainerPorts, note_exit
from areal_trainer.engine.group import RankGroup, first_only
from areal_trainer.ledger_batches import LedgerBatches
from areal_trainer.ledger_desk import LedgerDesk
from areal_trainer.settings import RowsSettings, TrainerSettings
from areal_trainer.trainings.desk import RowsDesk
from areal_trainer.trainings.run import RowBatches


class Batches(Protocol):
    """Where batches come from, with the models that learn them: the ledger, or fixed rows. Methods are collectives."""

    checkpointer: Checkpointer

    def prepare(self) -> None:
        """Before a checkpoint is loaded: what the start model must say."""

    def begin(self, fence: int, found: FoundCheckpoint | None) -> None:
        """Agree with others on where the run is, leave evidence, open the doors."""

    def train(self) -> ExitCode:
        """Until the last step, or until the trainer is asked to stop: everything is saved and published then."""

    def close(self) -> None:
        """Give back what was opened."""


def run(settings: TrainerSettings | RowsSettings, ports: TrainerPorts, stopping: threading.Event) -> ExitCode:
    """Train until the last step, or until `stopping` is set. Every rank calls this."""
    mesh = settings.spec.trainer.mesh
    ranks, waits = RankGroup(mesh.replicate, mesh.tensor, mesh.context), WaitRegistry("trainer")
    fence: int | None = None
    with ExitStack() as closing:
        closing.callback(ranks.close)
        try:
            batches, desk = _opened(settings, ports, ranks, waits, stopping, closing)
            found = batches.checkpointer.newest(desk.history())
            fence = int(ranks.tell(desk.restore(found)).header["fence"])
            batches.prepare()
            if found is not None:
                batches.checkpointer.load(found)
            batches.begin(fence, found)
            return batches.train()
        except AskedToStop:
            return ExitCode.DRAINED  # nothing has begun: there is nothing to save
        except Exception as error:
            if fence is not None:
                end = Exit(fence, blamed(error).exit_code, type(error).__name__)
                note_exit(settings.paths, end, f"rank-{ranks.rank}")
            raise


def _opened(
    settings: TrainerSettings | RowsSettings, ports: TrainerPorts, ranks: RankGroup, waits: WaitRegistry,
    stopping: threading.Event, closing: ExitStack,
) -> tuple[Batches, Desk]:  # fmt: skip
    """The models, loaded, and rank 0's desk."""
    if isinstance(settings, RowsSettings):
        of_rows = first_only(ranks, lambda: RowsDesk(settings, ports, waits))
        closing.callback(of_rows.close)
        rows = RowBatches(settings, ranks, of_rows, waits, stopping)
        closing.callback(rows.close)
        return rows, of_rows
    desk = first_only(ranks, lambda: LedgerDesk(settings, ports, waits))
    closing.callback(desk.close)
    batches = LedgerBatches(settings, ranks, desk, waits, stopping)
    closing.callback(batches.close)
    return batches, desk
