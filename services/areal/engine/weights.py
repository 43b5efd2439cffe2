"""Model weights in memory: read from safetensors, fused for the forward pass, never changed afterwards.

A weight update builds a second `Weights` beside the one in use; swapping is a reference assignment by the scheduler,
so a failed load leaves the old weights untouched. Every tensor is copied out of the file: the directory may vanish.
"""

import math
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from areal.engine.adapter import NONE, Adapter, FusedBlock, LayerAdapter
from areal.engine.model_config import ModelConfig
from areal.errors import DataError
from areal.weights.adapter import ADAPTER_STEM, AdapterConfig, tensor_name
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


def build_weights(path: Path, raw: dict[str, Tensor], config: ModelConfig, dtype: torch.dtype) -> Weights:
    """Weights of tensors by Hugging Face name, which are copied. `path` is where they come from, for errors.

    Raises DataError naming the tensor that is missing or misshapen.
    """
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


# ---- Reads an adapter in peft's layout into the embedded engine's fused form, beside the weights that it belongs to


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


# ---- Checksums of the weights in use, under their Hugging Face names: what an engine really holds
# Taken from the fused tensors that the forward pass reads, not from a file and not when they were loaded, so that a
# load that did nothing, or did something else, shows. Fusing is undone; a tensor is hashed in the dtype of its file,
# where that is not finer than the engine's.


def checksums(weights: Weights, config: ModelConfig) -> dict[str, str]:
    """xxh3-128 of each tensor's bytes, by name: of equal weights the same as in a published version's manifest."""
    return digests(_tensors(weights, config), weights.file_dtypes)


def digests(tensors: Iterable[tuple[str, Tensor]], file_dtypes: Mapping[str, torch.dtype]) -> dict[str, str]:
    """xxh3-128 of tensors in the dtypes of their files; empty text where a file's numbers are finer."""
    found: dict[str, str] = {}
    for name, tensor in tensors:
        dtype = file_dtypes.get(name, tensor.dtype)
        if dtype != tensor.dtype and torch.finfo(dtype).eps < torch.finfo(tensor.dtype).eps:
            found[name] = ""  # its bytes can't be had back
            continue
        raw = tensor.to(dtype).contiguous().flatten().view(torch.uint8)
        found[name] = xxhash.xxh3_128_hexdigest(raw.numpy().data)
    return found


def _tensors(weights: Weights, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    yield "model.embed_tokens.weight", weights.embedding
    yield "model.norm.weight", weights.final_norm
    if weights.head is not weights.embedding or "lm_head.weight" in weights.file_dtypes:
        yield "lm_head.weight", weights.head
    for index, layer in enumerate(weights.layers):
        for name, tensor in _layer_tensors(layer, config):
            yield f"model.layers.{index}.{name}", tensor
        for fused in (layer.adapter.qkv, layer.adapter.out, layer.adapter.gate_up, layer.adapter.down):
            if fused is not None:
                yield from _adapter(fused, f"model.layers.{index}.", config.head_dim)


def _layer_tensors(layer: Layer, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    dim = config.head_dim
    query, key = config.heads * dim, (config.heads + config.kv_heads) * dim  # where these rows end
    for kind, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
        if fused is not None:
            yield f"self_attn.q_proj.{kind}", _halves(fused[:query], dim)
            yield f"self_attn.k_proj.{kind}", _halves(fused[query:key], dim)
            yield f"self_attn.v_proj.{kind}", fused[key:]
    if layer.qk_norm is not None:
        yield "self_attn.q_norm.weight", _halves(layer.qk_norm[0], dim)
        yield "self_attn.k_norm.weight", _halves(layer.qk_norm[config.heads], dim)
    yield "self_attn.o_proj.weight", layer.out
    if layer.out_bias is not None:
        yield "self_attn.o_proj.bias", layer.out_bias
    yield "input_layernorm.weight", layer.input_norm
    yield "post_attention_layernorm.weight", layer.post_norm
    gate, up = layer.gate_up.chunk(2)
    yield "mlp.gate_proj.weight", gate
    yield "mlp.up_proj.weight", up
    yield "mlp.down_proj.weight", layer.down


def _adapter(fused: Adapter, prefix: str, head_dim: int) -> Iterator[tuple[str, Tensor]]:
    for block in fused.blocks:
        b = fused.b[block.rows, block.ranks]
        yield tensor_name(prefix + block.module, "A"), fused.a[block.ranks]
        yield tensor_name(prefix + block.module, "B"), _halves(b, head_dim) if block.rotary else b


def _halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of each head from adjacent rotary pairs back to [first half, second half]."""
    shape = rows.shape
    return rows.reshape(-1, head_dim // 2, 2, *shape[1:]).transpose(1, 2).reshape(shape)
