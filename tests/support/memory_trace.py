"""Peak bytes of rank 0's training step: the real engine on fake tensors in a fake process group, cell after cell.

    python -m support.memory_trace CELLS.json

A line of JSON a cell. No memory is taken and nothing is computed; storages are counted as they come and go.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import areal_trainer.engine.attention as attention
import areal_trainer.engine.engine as engine
import numpy as np
import torch
import torch.distributed as dist
import transformers.masking_utils as masking
from areal.weights.adapter import AdapterConfig
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import local
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PIECE = 512  # bytes: what CUDA's allocator rounds up to


class StorageMeter(TorchDispatchMode):
    """Bytes of all storages that live, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_iter(out):
            if isinstance(one, Tensor):
                self.seen(one)
        return out

    def seen(self, tensor: Tensor) -> None:
        tensor = local(tensor) if isinstance(tensor, DTensor) else tensor
        storage = tensor.untyped_storage()
        if tensor.device.type == "meta" or storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = 0
        self._set(storage._cdata, storage.nbytes())
        weakref.finalize(storage, self._gone, storage._cdata)

    def _set(self, key: int, size: int) -> None:
        rounded = -(-size // PIECE) * PIECE
        self.now += rounded - self._sizes[key]
        self._sizes[key] = rounded
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)

    def __enter__(self) -> Any:
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            done = self._resize(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)
            return done

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]  # no operator: not dispatched
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)


def rows(count: int, tokens: int) -> TokenBatch:
    """So many samples of so many tokens."""
    return TokenBatch(
        token_ids=np.random.default_rng(0).integers(0, 1000, count * tokens),
        behaviour_logprobs=np.zeros(count * tokens, np.float32),
        loss_mask=np.ones(count * tokens, np.bool_),
        versions=np.zeros(count * tokens, np.int64),
        offsets=np.arange(count + 1, dtype=np.int64) * tokens,
        group_ids=np.arange(count),
        sample_indices=np.zeros(count, np.int64),
        rewards=np.zeros(count),
        truncated=np.zeros(count, np.bool_),
    )


def traced(model: Path, cell: dict[str, Any]) -> dict[str, Any]:
    """Peak and what is held between two steps, in bytes."""
    world, tokens, micros = cell["ranks"], cell["tokens"], cell.get("micros", 2)
    os.environ.update(RANK="0", WORLD_SIZE=str(world), LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=0, world_size=world, store=FakeStore())
    ranks = RankGroup()
    batch = rows(micros * world, tokens)
    mine = rank_micro_batches(
        batch, np.arange(micros * world), batch.trainable(), rank=0, world_size=world, micro_batch_tokens=tokens,
        pack_length=None,
    )  # fmt: skip
    layouts = {id(micro): attention.layout_of(micro, torch.device("cpu")) for micro in mine}
    adapter = None
    if rank := cell.get("lora"):
        adapter = AdapterConfig(rank=rank, alpha=2.0 * rank, targets=TARGETS)
    options = engine.ModelOptions(
        precision="bfloat16", attention="varlen", recompute=cell["recompute"], adapter=adapter,
        optimizer=AdamWOptions(state=cell.get("state", "float32")),
    )  # fmt: skip
    meter = StorageMeter()
    with FakeTensorMode(allow_non_fake_inputs=True), meter:
        made = engine.PolicyEngine(model, options, ranks)
        start = meter.now
        rows_of, current = made._rows, [mine[0]]

        def seen(micro: Any, masked: bool = False) -> Any:
            current[0] = micro
            return rows_of(micro, masked)

        made._rows = seen  # type: ignore[method-assign]
        engine._places = lambda micro, kind, device: layouts[id(current[0])]
        for name in made.optimizer._local:  # the step itself reads values: its moments are made, as by a step before
            made.optimizer._adam.moments(name)
        held = meter.now
        made.accumulate(mine, lambda logprobs, entropy, micro: -logprobs.sum() / 1000)
        peak = meter.peak
        del made
    gc.collect()
    ranks.close()
    return {"peak": peak, "start": start, "held": held}


@contextmanager
def patched() -> Iterator[None]:
    """Fake weights, and attention as a GPU would call it: its shape rule serves fake tensors."""

    def load(model: Any, path: Path, device: torch.device) -> None:
        model.to_empty(device=device)
        model.lm.tie_weights()

    masking.find_packed_sequence_indices = lambda positions: None  # it reads a value
    attention._one_by_one = attention._on_cuda
    engine.drops_gathered = lambda ranks, mesh: True
    engine.load_weights = load
    engine.lora.draw = lambda *given: None
    yield


def main() -> None:
    torch.set_num_threads(1)
    with patched(), tempfile.TemporaryDirectory() as place:
        for cell in json.loads(Path(sys.argv[1]).read_text()):
            model = Path(place)
            (model / "config.json").write_text(json.dumps(cell["config"]))
            (model / "preprocessor_config.json").write_text('{"image_processor_type": "Qwen2VLImageProcessor"}')
            began = time.monotonic()
            found = traced(model, cell)
            print(json.dumps({**found, "s": round(time.monotonic() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()
