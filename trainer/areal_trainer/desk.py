"""Rank 0's desk: the trainer's fence, its evidence, its server and metrics, whatever its batches come from."""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.errors import FencedError, InfraError
from areal.ledger import evidence, fences
from areal.ledger.evidence import Exit
from areal.net.server import GrpcServer, LoopThread
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.weights.manifest import MANIFEST_NAME

from areal_trainer.checkpoint.catalog import Began, FoundCheckpoint
from areal_trainer.control import Telling, TrainerControl
from areal_trainer.engine.group import RankMessage
from areal_trainer.settings import RowsSettings, TrainerPaths, TrainerSettings

_log = logging.getLogger(__name__)

Service = tuple[Callable[..., Any], Any, str]
"""What adds a gRPC service to a server, the service, its full name."""


@dataclass(frozen=True)
class TrainerPorts:
    """Where this trainer serves; 0 picks free ones."""

    grpc: int = 0
    metrics: int = 0


class Desk:
    """What rank 0 alone has: the other ranks have a null object in its place."""

    def __init__(self, settings: TrainerSettings | RowsSettings, ports: TrainerPorts, waits: WaitRegistry) -> None:
        self.paths = settings.paths
        self.telling = Telling()
        self.progress = ProgressCounter()
        self.metrics = RoleMetrics("trainer", settings.name)
        self.waits = waits
        self.thread = LoopThread()
        self.fence = 0
        self.closing: list[Callable[[], None]] = [self.thread.stop]
        self._access, self._bind, self._ports = settings.access, settings.bind, ports

    def history(self) -> list[Began]:
        """Starts of the trainers before, as the evidence says."""
        newest, code = fences.newest(self.paths.fences, "trainer"), int(os.environ.get("AREAL_LAST_EXIT", "0"))
        if code < 0 and newest:  # a signal, which only the launcher knows of
            note_exit(self.paths, Exit(newest, code), "launcher")
        self.evidence = evidence.read(self.paths.evidence)
        return [Began(start.fence, start.from_step) for start in self.evidence.starts]

    def restore(self, found: FoundCheckpoint | None) -> RankMessage:
        """Take a fence, which all ranks must know, and go on from a checkpoint, or from the start."""
        self.fence = fences.allocate(self.paths.fences, "trainer")
        step = found.record.step if found is not None else 0
        _log.info("trainer starts under fence %d at step %d", self.fence, step)
        self.telling.step = self.telling.restored = self.telling.checkpoint_step = step
        if found is not None:
            self.telling.checkpoint_at = found.path.stat().st_mtime
        return RankMessage({"fence": self.fence}, {})

    def serve(self, *services: Service) -> None:
        """Open the role's server and metrics; it says that it is ready once `ready` is called."""
        self.metrics.serve(self._ports.metrics, self._bind)

        async def begin() -> GrpcServer:
            server = GrpcServer("trainer", self._access, waits=self.waits, progress=self.progress)
            control = TrainerControl(self.telling, self.progress)
            server.add(operations_grpc.add_TrainerControlServicer_to_server, control, "areal.v1.TrainerControl")
            for add, service, name in services:
                server.add(add, service, name)
            await server.start(self._ports.grpc, self._bind)
            return server

        server = self._server = self.thread.call(begin(), 10.0)
        self.closing.append(lambda: self.thread.call(server.stop(0.2), 5.0))

    def ready(self) -> None:
        """The trainer may be counted on."""
        self.thread.call(self._server.set_ready(True), 5.0)

    def still_mine(self) -> None:
        """Raise FencedError when a newer trainer has begun."""
        if (newest := fences.newest(self.paths.fences, "trainer")) != self.fence:
            raise FencedError(f"trainer fence {self.fence} is over: {newest} has begun")

    def doing(self, phase: str) -> None:
        """Say in a word what goes on."""
        self.progress.doing = self.telling.phase = phase

    def close(self) -> None:
        """Give back everything that was opened, newest first."""
        for close in reversed(self.closing):
            try:
                close()
            except (OSError, TimeoutError) as error:
                _log.warning("closing: %s", error)


def note_exit(paths: TrainerPaths, ended: Exit, seen_by: str) -> None:
    """Put an exit into the evidence. What ended the trainer matters more than the note of it."""
    try:
        evidence.exited(paths.evidence, ended, seen_by)
    except InfraError as error:
        _log.warning("the exit of fence %d is not in the evidence: %s", ended.fence, error.message)


def copy_model(version: Path, target: Path) -> None:
    """The final version as a plain Hugging Face directory, whole or not at all."""
    partial = target.with_name(target.name + ".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(version, partial, ignore=shutil.ignore_patterns(MANIFEST_NAME))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
