"""A family's Hugging Face module in a scheduler, without a server."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from areal.engine.commands import Add, Continue, Load, Pause
from areal.engine.model_config import ModelConfig
from areal.engine.module_model import ModuleModel
from areal.engine.request import GenerateRequest, Output
from areal.engine.scheduler import DecodeScheduler, SchedulerLimits
from areal.engine.weights import read_tensors

F32 = torch.float32


class Served:
    """A started scheduler of a module whose outputs are collected."""

    def __init__(self, path: Path, **limits: int) -> None:
        self.path = path
        self.model = ModuleModel(ModelConfig.from_dir(path), path, F32)
        self.last: dict[str, Output] = {}
        self.failures: list[BaseException] = []
        self._changed = threading.Condition()
        self.scheduler = DecodeScheduler(
            self.model,
            self.model.build(path, read_tensors(path)),
            version="0.f1",
            model_path=str(path),
            limits=SchedulerLimits(**({"max_running": 4} | limits)),
            deliver=self._deliver,
            on_failure=self.failures.append,
        )
        self.scheduler.start()

    def _deliver(self, outputs: list[Output]) -> None:
        with self._changed:
            self.last.update((output.request.rid, output) for output in outputs)
            self._changed.notify_all()

    def add(self, *requests: GenerateRequest) -> None:
        self.scheduler.post(Add(list(requests)))

    def until_made(self, rid: str, tokens: int) -> None:
        with self._changed:
            made = self._changed.wait_for(lambda: rid in self.last and len(self.last[rid].output_ids) >= tokens, 60)
            assert made, self.failures

    def ended(self, *rids: str) -> list[Output]:
        with self._changed:
            done = self._changed.wait_for(lambda: all(rid in self.last and self.last[rid].finish for rid in rids), 60)
            assert done, self.failures
        return [self.last[rid] for rid in rids]

    def command(self, command: Pause | Load | Continue) -> None:
        self.scheduler.post(command)
        assert command.done.result(60).success
