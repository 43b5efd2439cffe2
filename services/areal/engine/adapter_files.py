"""Reads an adapter in peft's layout into the embedded engine's fused form, beside the weights that it belongs to."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from areal.engine.adapter import Adapter, FusedBlock, LayerAdapter
from areal.engine.model_config import ModelConfig
from areal.engine.weights import Layer, Weights, pairs, read_shard
from areal.errors import DataError
from areal.weights.adapter import ADAPTER_STEM, AdapterConfig, tensor_name

_FIX = "publish an adapter of the model that the engine was started with"


def with_adapter(base: Weights, path: Path, config: ModelConfig) -> Weights:
    """`base` with the adapter in `path`. Raises DataError for one of another model."""
    raw = read_shard(path / f"{ADAPTER_STEM}.safetensors")
    read = _AdapterReader(path, dict(raw), AdapterConfig.from_dir(path).scale, base.embedding.dtype)
    layers = tuple(replace(layer, adapter=_of_layer(read, layer, config, n)) for n, layer in enumerate(base.layers))
    if read.left:
        raise DataError(f"{path} adapts {min(read.left)}, which this model doesn't have", fix=_FIX)
    dtypes = {name: tensor.dtype for name, tensor in raw.items()}
    return replace(base, layers=layers, file_dtypes={**base.file_dtypes, **dtypes})


def _of_layer(read: "_AdapterReader", layer: Layer, config: ModelConfig, number: int) -> LayerAdapter:
    prefix, dim = f"model.layers.{number}.", config.head_dim
    attention = [
        ("q", config.heads * dim, True),
        ("k", config.kv_heads * dim, True),
        ("v", config.kv_heads * dim, False),
    ]
    width = layer.gate_up.shape[0] // 2
    return LayerAdapter(
        qkv=read.fused(
            prefix, layer.qkv, [(f"self_attn.{n}_proj", size, turned) for n, size, turned in attention], dim
        ),
        out=read.fused(prefix, layer.out, [("self_attn.o_proj", config.hidden, False)]),
        gate_up=read.fused(prefix, layer.gate_up, [("mlp.gate_proj", width, False), ("mlp.up_proj", width, False)]),
        down=read.fused(prefix, layer.down, [("mlp.down_proj", config.hidden, False)]),
    )


class _AdapterReader:
    """Takes pairs of matrices by module; what is left at the end belongs to nothing."""

    def __init__(self, path: Path, left: dict[str, Tensor], scale: float, dtype: torch.dtype) -> None:
        self._path = path
        self.left = left
        self._scale = scale
        self._dtype = dtype

    def fused(
        self, prefix: str, weight: Tensor, modules: Sequence[tuple[str, int, bool]], head_dim: int = 0
    ) -> Adapter | None:
        """The adapters of the modules that one fused `weight` [out, in] is made of: (name, rows, rotary)."""
        found: list[tuple[FusedBlock, Tensor, Tensor]] = []
        row = rank = 0
        for module, size, rotary in modules:
            a, b = (self.left.pop(tensor_name(prefix + module, matrix), None) for matrix in "AB")
            if a is not None and b is not None:
                if a.shape[1:] != weight.shape[1:] or tuple(b.shape) != (size, a.shape[0]):
                    said = f"{list(a.shape)} and {list(b.shape)}"
                    raise DataError(f"the adapter of {prefix}{module} in {self._path} is {said}", fix=_FIX)
                block = FusedBlock(module, slice(row, row + size), slice(rank, rank + a.shape[0]), rotary)
                found.append((block, a, pairs(b, head_dim) if rotary else b))
                rank += a.shape[0]
            elif a is not None or b is not None:
                raise DataError(f"the adapter of {prefix}{module} in {self._path} lacks a matrix", fix=_FIX)
            row += size
        if not found:
            return None
        up = torch.zeros(row, rank, dtype=self._dtype)
        for block, _, b in found:
            up[block.rows, block.ranks] = b.to(self._dtype)
        down = torch.cat([a.to(self._dtype) for _, a, _ in found])  # a copy: the file may vanish
        return Adapter(down, up, self._scale, tuple(block for block, _, _ in found))
