"""Writes and loads checkpoints with torch's distributed checkpoint, so that any world size loads any other's.

Promises that a name appears only when everything below it is on disk, and that a trainer which was replaced gives
nothing a name: `still_mine` is asked last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from areal.errors import DataError
from areal.files import install_directory
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from areal_trainer.checkpoint import catalog
from areal_trainer.checkpoint.catalog import Began, Found, Record
from areal_trainer.engine.engine import Engine
from areal_trainer.engine.model import config_json
from areal_trainer.engine.value_engine import ValueEngine

_log = logging.getLogger(__name__)
_SHAPE_FIELDS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
_TORCH_LOGGER = "c10d-NullHandler-dcp_logger"


@dataclass(frozen=True)
class Position:
    """How far the run is, and under which fence: goes into the record."""

    step: int
    next_group: int
    tombstones_below: int
    fence: int


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk, and how long it took to write."""

    position: Position
    path: Path
    wall_s: float

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.stat().st_size for file in self.path.iterdir())


class Checkpointer:
    """One directory of checkpoints. `save` and `load` are collectives: every rank calls them."""

    def __init__(self, directory: Path, keep: int, engine: Engine, critic: ValueEngine | None = None) -> None:
        logging.getLogger(_TORCH_LOGGER).setLevel(logging.WARNING)  # or two lines for every tensor
        self._directory = directory
        self._keep = keep
        self._engine = engine
        self._critic = critic
        config = json.dumps(_shape_of(config_json(engine.model_path)), sort_keys=True)
        self._model_digest = hashlib.sha256(config.encode()).hexdigest()

    def save(self, position: Position, still_mine: Callable[[], None]) -> Path:
        """Write everything, seal it, name it, drop the oldest. `still_mine` raises FencedError when it is not."""
        ranks = self._engine.ranks
        final = self._directory / catalog.name(position.step, position.fence)
        partial = final.with_name(final.name + catalog.PARTIAL)
        if ranks.first:
            self._directory.mkdir(parents=True, exist_ok=True)
            _empty(partial)
        ranks.barrier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about one process without a group: intended
            save_tensors(
                self._state(),
                storage_writer=FileSystemWriter(partial, sync_files=False),  # sealing syncs them
                no_dist=ranks.world_size == 1,
            )
        for device, state in self._engine.rng_states().items():
            np.save(partial / _rng_name(device, ranks.rank), state)
        ranks.barrier()
        if ranks.first:
            files = {path.name: catalog.fingerprint(path) for path in sorted(partial.iterdir())}
            record = Record(
                step=position.step,
                fence=position.fence,
                next_group=position.next_group,
                tombstones_below=position.tombstones_below,
                optimizer_updates=self._engine.optimizer.updates,
                world_size=ranks.world_size,
                model_digest=self._model_digest,
                files=files,
                critic_updates=self._critic.optimizer.updates if self._critic is not None else 0,
            )
            catalog.seal(partial, record)
            still_mine()
            install_directory(partial, final)
            catalog.collect(self._directory, self._keep)
        ranks.barrier()
        return final

    def newest(self, began: list[Began]) -> Found | None:
        """The checkpoint to go on from. Logs why newer ones were passed over."""
        found, passed = catalog.newest(self._directory, began)
        for reason in passed:
            _log.warning("checkpoint passed over: %s", reason)
        return found

    def load(self, found: Found) -> None:
        """Fill models, optimizers and random numbers from a checkpoint."""
        record = found.record
        if record.model_digest != self._model_digest:
            raise DataError(
                f"{found.path.name} belongs to a model of another shape",
                fix="start a new run directory, or put the old model back",
            )
        ranks = self._engine.ranks
        state = self._state()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_tensors(state, storage_reader=FileSystemReader(found.path), no_dist=ranks.world_size == 1)
        self._engine.optimizer.set_updates(record.optimizer_updates)
        if self._critic is not None:
            self._critic.optimizer.set_updates(record.critic_updates)
        rng = {device: found.path / _rng_name(device, ranks.rank) for device in self._engine.rng_states()}
        # Another world size may have had fewer ranks, another machine no accelerator.
        self._engine.set_rng_states({device: np.load(path) for device, path in rng.items() if path.exists()})
        ranks.barrier()

    def _state(self) -> dict[str, Tensor]:
        """All tensors by name, sharing memory with the models."""
        values = self._critic.state() if self._critic is not None else {}
        return {**self._engine.state(), **{f"critic.{name}": tensor for name, tensor in values.items()}}


def _shape_of(config: dict[str, object]) -> dict[str, object]:
    """What must match for tensors to mean the same."""
    return {field: config.get(field) for field in _SHAPE_FIELDS}


def _rng_name(device: str, rank: int) -> str:
    return f"rng-{device}-{rank:05d}.npy"


def _empty(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
