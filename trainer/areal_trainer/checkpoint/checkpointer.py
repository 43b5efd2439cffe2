"""Writes and loads checkpoints with torch's distributed checkpoint, so that any world size loads any other's.

Training waits for the copy to the host only. A thread of each rank writes its part and hashes it meanwhile, on a
process group of its own; rank 0 seals when all have. Promises that a name appears only when everything below it is on
disk, and that a trainer which was replaced gives nothing a name: `still_mine` is asked last.
"""

import hashlib
import json
import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
import xxhash
from areal.errors import DataError, InfraError
from areal.files import install_directory, sync_file
from areal.observe.waits import WaitRegistry
from areal.spec.quantity import show_bytes
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from areal_trainer.checkpoint import catalog
from areal_trainer.checkpoint.catalog import Began, CheckpointRecord, FoundCheckpoint
from areal_trainer.checkpoint.saving import DEADLINE_S, RunPosition, SavedCheckpoint, Saving
from areal_trainer.engine.engine import PolicyEngine, ValueEngine
from areal_trainer.engine.group import RankMessage, first_only
from areal_trainer.engine.host_copy import HostSlab, specs_of
from areal_trainer.engine.meeting import Meeting, failed, failures
from areal_trainer.engine.model import config_json
from areal_trainer.engine.optimizer import like, local

_log = logging.getLogger(__name__)
_SHAPE_FIELDS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "tie_word_embeddings",
)  # fmt: skip
_TORCH_LOGGER = "c10d-NullHandler-dcp_logger"

CRITIC = "critic"  # the name of that part
POINTS = ("staged", "written", "met", "before rename", "sealed")
"""Places at which a checkpoint may be cut short, in their order; `Checkpointer.at` is told of each."""


@dataclass(frozen=True)
class _CheckpointSnapshot:
    """What one rank writes: nothing of it changes while training goes on."""

    position: RunPosition
    tensors: dict[str, Tensor]
    rng: dict[str, NDArray[np.uint8]]
    optimizer_updates: int
    updates_beside: dict[str, int]
    still_mine: Callable[[], None]
    began: float


class CheckpointPart(Protocol):
    """What is in the checkpoints beside the policy: a critic, or what a recipe's stage keeps."""

    def state(self) -> dict[str, Tensor]:
        """Tensors by name, which a checkpoint copies and fills."""

    @property
    def updates(self) -> int:
        """Updates of its optimizer; 0 without one."""

    def set_updates(self, updates: int) -> None:
        """After its tensors were filled."""


class Checkpointer:
    """One directory of checkpoints. `save`, `newest` and `load` are collectives: every rank calls them."""

    def __init__(
        self,
        directory: Path,
        keep: int,
        engine: PolicyEngine | ValueEngine,
        beside: Mapping[str, CheckpointPart] | None = None,
        *,
        waits: WaitRegistry | None = None,
        at: Callable[[str], None] = lambda point: None,
    ) -> None:
        logging.getLogger(_TORCH_LOGGER).setLevel(logging.WARNING)  # or two lines for every tensor
        self._directory = directory
        self._keep = keep
        self._engine = engine
        self._beside = beside or {}
        self._waits = waits or WaitRegistry("trainer")
        self._at = at
        self._meeting = Meeting(engine.ranks, "writing a checkpoint", DEADLINE_S)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="areal-checkpoint")
        held = specs_of((name, local(tensor)) for name, tensor in self._state().items())
        slab = HostSlab("the checkpoint's copy", held, engine.ranks.device)
        self._copy = self._pool.submit(slab.touch)  # the first checkpoint needn't
        self._running: Saving | None = None
        config, adapter = config_json(engine.model_path), engine.options.adapter
        shape = {field: config.get(field) for field in _SHAPE_FIELDS}  # must match for tensors to mean the same
        if adapter is not None:  # the only weights in a checkpoint
            shape |= {"lora": [adapter.rank, adapter.alpha, sorted(adapter.targets)]}
        self._model_digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()

    # ---- save

    def save(self, position: RunPosition, still_mine: Callable[[], None]) -> Saving:
        """Copy everything to the host and begin to write it, once the checkpoint before is on disk.

        What goes wrong with it later is raised where it is waited for. `still_mine`, asked before the name is given,
        raises FencedError when this trainer was replaced.
        """
        self.wait()
        began = time.monotonic()
        first_only(self._engine.ranks, lambda: self._ask_for_room)(position)
        snapshot = _CheckpointSnapshot(
            position,
            self._staged(),
            self._engine.rng_states(),
            self._engine.optimizer.updates,
            {name: part.updates for name, part in self._beside.items()},
            still_mine,
            began,
        )
        self._at("staged")
        future = self._pool.submit(self._write, snapshot)
        self._running = Saving(position, future, self._engine.ranks, self._waits)
        return self._running

    def wait(self) -> None:
        """Wait until the checkpoint under way is on disk. Raises what went wrong with it."""
        if self._running is not None:
            self._running.wait()
            self._running = None

    def close(self) -> None:
        """Give the thread back; what runs is finished."""
        self._pool.shutdown(wait=True)

    def _ask_for_room(self, position: RunPosition) -> None:
        """Refuse to begin what can't end: a disk that is full stops the ledger and the journal, too."""
        final = self._directory / catalog.name(position.step, position.fence)
        catalog.sweep(self._directory)
        needed = sum(tensor.numel() * tensor.element_size() for tensor in self._state().values())
        place = next(each for each in (self._directory, *self._directory.parents) if each.exists())
        if (free := shutil.disk_usage(place).free) < needed:
            raise _broken(final, f"it takes {show_bytes(needed)}, and {place} has {show_bytes(free)} free")

    def _staged(self) -> dict[str, Tensor]:
        """All tensors as shards in host memory, where those of the checkpoint before were."""
        slab, state = self._copy.result(), self._state()
        slab.fill((name, local(tensor)) for name, tensor in state.items())
        return {name: like(tensor, slab.views[name]) for name, tensor in state.items()}

    def _write(self, snapshot: _CheckpointSnapshot) -> SavedCheckpoint:
        position = snapshot.position
        final = self._directory / catalog.name(position.step, position.fence)
        partial = final.with_name(final.name + catalog.PARTIAL)
        written: dict[str, tuple[int, str]] = {}
        problem: OSError | None = None
        try:
            written = self._write_part(snapshot, partial)
        except OSError as error:
            problem = error
        self._at("written")
        heard = self._meeting.gather(json.dumps(written).encode() if problem is None else failed(problem))
        self._at("met")
        if self._engine.ranks.first:
            self._finish(snapshot, heard, partial, final)
        elif problem is not None:
            raise _broken(final, f"{type(problem).__name__}: {problem}") from problem
        return SavedCheckpoint(position, final, time.monotonic() - snapshot.began)

    def _write_part(self, snapshot: _CheckpointSnapshot, partial: Path) -> dict[str, tuple[int, str]]:
        """This rank's files, on disk, with their sizes and checksums. Raises OSError."""
        ranks = self._engine.ranks
        writer = HashingWriter(partial)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about one process without a group: intended
                save_tensors(
                    snapshot.tensors,
                    storage_writer=writer,
                    process_group=self._meeting.group,
                    no_dist=ranks.world_size == 1,
                )
        except CheckpointException as error:
            if writer.files.problem is not None:
                raise writer.files.problem from error
            causes = (f"of rank {at}: {type(cause).__name__}: {cause}" for at, (cause, _) in error.failures.items())
            raise OSError(f"a part is missing, {'; '.join(causes)}") from error
        for device, state in snapshot.rng.items():
            path = partial / _rng_name(device, ranks.rank)
            np.save(path, state)
            sync_file(path)
            writer.files.written[path.name] = catalog.fingerprint(path)
        return writer.files.written

    def _finish(self, snapshot: _CheckpointSnapshot, heard: list[bytes], partial: Path, final: Path) -> None:
        try:
            if wrong := failures(heard):
                raise _broken(final, wrong)
            position = snapshot.position
            record = CheckpointRecord(
                step=position.step,
                fence=position.fence,
                optimizer_updates=snapshot.optimizer_updates,
                world_size=self._engine.ranks.world_size,
                model_digest=self._model_digest,
                files={name: tuple(entry) for said in heard for name, entry in json.loads(said).items()},
                critic_updates=snapshot.updates_beside.get(CRITIC, 0),
                other_updates={name: n for name, n in snapshot.updates_beside.items() if name != CRITIC},
            )
            catalog.seal(partial, record)
            self._at("before rename")
            snapshot.still_mine()
            install_directory(partial, final)
        except OSError as error:
            raise _broken(final, f"{type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # there is nothing left of it when it has its name
        self._at("sealed")
        catalog.collect(self._directory, self._keep)

    # ---- load

    def newest(self, began: Sequence[Began]) -> FoundCheckpoint | None:
        """The checkpoint to go on from; what `began` is rank 0 alone knows. Logs why newer ones were passed over.

        Each rank reads its own share of the files to the end, so that none is read twice.
        """
        ranks = self._engine.ranks
        past: list[Path] = []
        if ranks.first:
            past, passed = catalog.candidates(self._directory, began)
            for reason in passed:
                _log.warning("checkpoint passed over: %s", reason)
        while True:
            told = ranks.tell(RankMessage({"path": str(past.pop(0)) if past else ""}, {})).header
            if not told["path"]:
                return None
            path = Path(told["path"])
            problem, record = catalog.examine(path, ranks.rank, ranks.world_size)
            if problem:
                _log.warning("checkpoint passed over: %s: %s", path.name, problem)
            damaged = torch.tensor(float(record is None), device=ranks.device)
            ranks.maximum(damaged)
            if record is not None and not damaged:
                return FoundCheckpoint(path, record)

    def load(self, found: FoundCheckpoint) -> None:
        """Fill models, optimizers and random numbers from a checkpoint."""
        record = found.record
        if record.model_digest != self._model_digest:
            raise DataError(
                f"{found.path.name} belongs to a model of another shape",
                fix="start a new run directory, or put the old model back",
            )
        if lacking := [name for name in self._beside if name != CRITIC and name not in record.other_updates]:
            raise DataError(
                f"{found.path.name} has nothing of {', '.join(lacking)}, which the recipe's graph(ctx) asks for",
                fix="start a new run directory, or put the old recipe back",
            )
        ranks = self._engine.ranks
        state = self._state()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_tensors(state, storage_reader=FileSystemReader(found.path), no_dist=ranks.world_size == 1)
        self._engine.optimizer.set_updates(record.optimizer_updates)
        for name, part in self._beside.items():
            part.set_updates(record.critic_updates if name == CRITIC else record.other_updates[name])
        rng = {device: found.path / _rng_name(device, ranks.rank) for device in self._engine.rng_states()}
        # Another world size may have had fewer ranks, another machine no accelerator.
        self._engine.set_rng_states({device: np.load(path) for device, path in rng.items() if path.exists()})
        ranks.barrier()

    def _state(self) -> dict[str, Tensor]:
        """All tensors by name, sharing memory with the models."""
        beside = {f"{part}.{name}": t for part, held in self._beside.items() for name, t in held.state().items()}
        return {**self._engine.state(), **beside}


def _rng_name(device: str, rank: int) -> str:
    return f"rng-{device}-{rank:05d}.npy"


def _broken(final: Path, cause: str) -> InfraError:
    fix = "free space on the run's volume, lower checkpoint.keep, or check the volume's mount"
    return InfraError(f"checkpoint {final.name} could not be written: {cause}", fix=fix)


# ---- A storage writer for torch's distributed checkpoint that hashes each file while it is written, and syncs it


class HashingWriter(FileSystemWriter):
    """Writes one rank's part of a checkpoint into `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync_files=True)
        self.fs = self.files = _HashedFiles()


class _HashedFiles(FileSystem):
    def __init__(self) -> None:
        self.written: dict[str, tuple[int, str]] = {}  # size and xxh3 of every file written, by name
        self.problem: OSError | None = None  # the first error of a write: torch raises another in its place

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        with self.noted(), Path(path).open(mode) as file:
            stream = _HashingStream(file, self)
            yield stream
            stream.close()
            self.written[Path(path).name] = (stream.size, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)

    @contextmanager
    def noted(self) -> Generator[None, None, None]:
        """Remember the first error of the block."""
        try:
            yield
        except OSError as error:
            self.problem = self.problem or error
            raise


class _HashingStream:
    """A file that is only ever appended to."""

    def __init__(self, file: IO[Any], files: _HashedFiles) -> None:
        self._file = file
        self._files = files
        self.size = 0
        self.digest = xxhash.xxh3_64()

    def write(self, data: bytes | memoryview) -> int:
        with self._files.noted():
            self._file.write(data)
        view = memoryview(data)
        self.digest.update(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        with self._files.noted():
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        with self._files.noted():
            self._file.close()  # flushes
