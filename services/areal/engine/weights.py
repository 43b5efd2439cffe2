"""Model weights in memory: read from safetensors, fused for the forward pass, never changed afterwards.

A weight update builds a second `Weights` beside the one in use; swapping is a reference assignment by the scheduler,
so a failed load leaves the old weights untouched. Every tensor is copied out of the file: the directory may vanish.
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from areal.engine.adapter import NONE, LayerAdapter
from areal.engine.model_config import ModelConfig
from areal.errors import DataError
from areal.weights.safetensors_format import TensorHeader, model_files, read_header

_TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Query, key and value are one matrix; gate and up are one matrix.

    Rows of query and key are permuted within each head so that a rotary pair is adjacent: rotation then is one complex
    product, and dot products between queries and keys do not notice.
    """

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2·kv_heads)·head_dim, hidden]
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim], of Qwen3
    out: Tensor  # [hidden, heads·head_dim]
    out_bias: Tensor | None
    post_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2·intermediate, hidden]
    down: Tensor  # [hidden, intermediate]
    adapter: LayerAdapter = NONE


@dataclass(frozen=True)
class Weights:
    """All weights of one policy version."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[Layer, ...]
    final_norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]; the embedding itself when tied
    file_dtypes: dict[str, torch.dtype]  # of each tensor as it lies in the file, by Hugging Face name


def load_weights(path: Path, config: ModelConfig, dtype: torch.dtype) -> Weights:
    """Read a Hugging Face safetensors directory. Raises DataError naming the tensor that is missing or misshapen."""
    return build_weights(path, read_tensors(path), config, dtype)


def build_weights(path: Path, raw: dict[str, Tensor], config: ModelConfig, dtype: torch.dtype) -> Weights:
    """Weights of tensors by Hugging Face name, which are copied. `path` is where they come from, for errors."""
    source = TensorSource(path, raw, dtype)
    hidden, vocab = config.hidden, config.vocab
    embedding = source.take("model.embed_tokens.weight", (vocab, hidden))
    head = embedding if config.tied_embeddings else source.take("lm_head.weight", (vocab, hidden))
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(source, config, index) for index in range(config.layers)),
        final_norm=source.take("model.norm.weight", (hidden,)),
        head=head,
        file_dtypes={name: tensor.dtype for name, tensor in raw.items()},
    )


class TensorSource:
    """Tensors by name, cast and copied, with errors that name them."""

    def __init__(self, path: Path, raw: dict[str, Tensor], dtype: torch.dtype) -> None:
        self._path = path
        self._raw = raw
        self._dtype = dtype

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._raw:
            raise DataError(f"{self._path} has no tensor {name}", fix="publish the whole model")
        tensor = self._raw[name]
        if tuple(tensor.shape) != shape:
            raise DataError(
                f"tensor {name} of {self._path} is {list(tensor.shape)}, this model needs {list(shape)}",
                fix="publish weights of the model that the engine was started with",
            )
        return tensor.to(self._dtype, copy=True).contiguous()

    def maybe(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        return self.take(name, shape) if name in self._raw else None


def _layer(source: TensorSource, config: ModelConfig, index: int) -> Layer:
    prefix = f"model.layers.{index}."
    hidden, dim = config.hidden, config.head_dim
    sizes = {"q": config.heads * dim, "k": config.kv_heads * dim, "v": config.kv_heads * dim}
    matrices = [source.take(f"{prefix}self_attn.{part}_proj.weight", (size, hidden)) for part, size in sizes.items()]
    biases = [source.maybe(f"{prefix}self_attn.{part}_proj.bias", (size,)) for part, size in sizes.items()]
    q_norm = source.maybe(f"{prefix}self_attn.q_norm.weight", (dim,))
    k_norm = source.maybe(f"{prefix}self_attn.k_norm.weight", (dim,))
    gate = source.maybe(f"{prefix}mlp.gate_proj.weight", _shape(source, prefix, hidden))
    up = source.take(f"{prefix}mlp.up_proj.weight", _shape(source, prefix, hidden))
    if gate is None:
        raise DataError(f"layer {index} has no gate projection", fix="publish the whole model")
    present = [bias for bias in biases if bias is not None]
    if present and len(present) != len(biases):
        raise DataError(f"layer {index} has only some of its attention biases", fix="publish the whole model")
    qkv = torch.cat([pairs(matrices[0], dim), pairs(matrices[1], dim), matrices[2]])
    bias = torch.cat([pairs(present[0], dim), pairs(present[1], dim), present[2]]) if present else None
    qk_norm = None
    if q_norm is not None and k_norm is not None:
        rows = [pairs(q_norm, dim)] * config.heads + [pairs(k_norm, dim)] * config.kv_heads
        qk_norm = torch.stack(rows)
    return Layer(
        input_norm=source.take(f"{prefix}input_layernorm.weight", (hidden,)),
        qkv=qkv,
        qkv_bias=bias,
        qk_norm=qk_norm,
        out=source.take(f"{prefix}self_attn.o_proj.weight", (hidden, config.heads * dim)),
        out_bias=source.maybe(f"{prefix}self_attn.o_proj.bias", (hidden,)),
        post_norm=source.take(f"{prefix}post_attention_layernorm.weight", (hidden,)),
        gate_up=torch.cat([gate, up]),
        down=source.take(f"{prefix}mlp.down_proj.weight", (hidden, up.shape[0])),
    )


def _shape(source: TensorSource, prefix: str, hidden: int) -> tuple[int, ...]:
    """Shape of the gate and up matrices: the intermediate size is whatever the file says, of both alike."""
    up = source._raw.get(f"{prefix}mlp.up_proj.weight")
    return (int(up.shape[0]) if up is not None else 0, hidden)


def pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Permute rows of each head from [first half, second half] to adjacent rotary pairs."""
    shape = rows.shape
    return rows.view(-1, 2, head_dim // 2, *shape[1:]).transpose(1, 2).reshape(shape)


def read_shard(path: Path) -> dict[str, Tensor]:
    """Tensors of one safetensors file, backed by a private mapping of it. Raises DataError for what is no such file.

    The safetensors library, reading for PyTorch, keeps some 64 bytes of every tensor that was ever read, for good: an
    engine that swaps weights at each step of a long run grows by that.
    """
    try:
        start, headers = read_header(path)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # lives as long as its tensors
        return {header.name: _tensor(path, header, start, mapped) for header in headers}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {error}", fix="publish the version again") from error


def _tensor(path: Path, header: TensorHeader, start: int, mapped: mmap.mmap) -> Tensor:
    dtype = _TORCH.get(header.dtype)
    if dtype is None:
        raise DataError(f"tensor {header.name} of {path} has dtype {header.dtype}", fix="publish float32 or bfloat16")
    size = math.prod(header.shape) * dtype.itemsize
    if header.start < 0 or header.end - header.start != size or start + header.end > len(mapped):
        raise DataError(f"{path} can't be read: tensor {header.name} is cut off", fix="publish the version again")
    if size == 0:
        return torch.empty(header.shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=size // dtype.itemsize, offset=start + header.start).view(
        header.shape
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a Hugging Face directory by name. Raises DataError when there are none."""
    tensors: dict[str, Tensor] = {}
    for file in model_files(path):
        tensors |= read_shard(file)
    if not tensors:
        raise DataError(f"{path} has no safetensors weights", fix="give the directory of a Hugging Face model")
    return tensors
