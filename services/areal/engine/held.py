"""Checksums of the weights in use, under their Hugging Face names: what an engine really holds.

Taken from the fused tensors that the forward pass reads, not from a file and not when they were loaded, so that a load
that did nothing, or did something else, shows. Fusing is undone; a tensor is hashed in the dtype of its file, where
that is not finer than the engine's.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
import xxhash
from torch import Tensor

from areal.engine.adapter import Adapter
from areal.engine.model_config import ModelConfig
from areal.engine.weights import Layer, Weights
from areal.weights.adapter import tensor_name


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
        for name, tensor in _layer(layer, config):
            yield f"model.layers.{index}.{name}", tensor
        for fused in (layer.adapter.qkv, layer.adapter.out, layer.adapter.gate_up, layer.adapter.down):
            if fused is not None:
                yield from _adapter(fused, f"model.layers.{index}.", config.head_dim)


def _layer(layer: Layer, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
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
