"""The forward pass of Qwen2, Qwen3 and Llama as plain functions of weights and cache.

`decode` runs one token of each row against the cache; `prefill` fills cache rows from prompts and, when asked,
returns hidden states for scoring. Neither owns state: weights are an argument, so a swap is the caller's assignment.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from areal.engine.adapter import add
from areal.engine.cache import KVCache
from areal.engine.model_config import ModelConfig
from areal.engine.weights import Layer, Weights, build_weights, checksums, with_adapter

_TILE_ELEMENTS = 1 << 20  # 4 MiB of the output layer cast at a time: stays in a cache


class DecoderModel:
    """Sizes and rotary table; all tensors of a policy come with each call."""

    rewinds = True  # a row may be used up to any position, so that padding on its right is harmless
    wants_routes, routes = False, None  # no model here has experts
    image_shape, images, shifts = None, (), None  # or reads images

    def __init__(self, config: ModelConfig, dtype: torch.dtype, context: int, *, fp32_head: bool = False) -> None:
        self.config = config
        self.dtype = dtype
        self._fp32_head = fp32_head and dtype != torch.float32
        self._rotation = _rotary_table(config, context)
        self._positions = torch.arange(context)

    def new_cache(self) -> KVCache:
        """Rows of keys and values, all free."""
        return KVCache(self.config, self.dtype)

    def build(self, path: Path, raw: dict[str, Tensor]) -> Weights:
        """Weights of tensors by Hugging Face name."""
        return build_weights(path, raw, self.config, self.dtype)

    def adapted(self, base: Weights, path: Path) -> Weights:
        """`base` with the adapter in `path`."""
        return with_adapter(base, path, self.config)

    def checksums(self, weights: Weights) -> dict[str, str]:
        """What these weights are, by Hugging Face name."""
        return checksums(weights, self.config)

    def decode(self, weights: Weights, cache: KVCache, tokens: Tensor, positions: Tensor) -> Tensor:
        """Append one token to each of the rows 0…n−1 and return their next-token logits, float32 [n, vocab].

        `tokens` and `positions` are int64 [n]; each row attends to its own positions 0…positions[i].
        """
        config = self.config
        rows, heads, kv_heads, dim = tokens.shape[0], config.heads, config.kv_heads, config.head_dim
        length = int(positions.max()) + 1
        rotation = self._rotation[positions][:, None]
        index = cache.flat_index(torch.arange(rows), positions)
        hidden_from = self._positions[:length] > positions[:, None]
        mask = torch.zeros(rows, 1, 1, length, dtype=self.dtype)
        mask.masked_fill_(hidden_from[:, None, None], -math.inf)
        scale = dim**-0.5
        x = F.embedding(tokens, weights.embedding)
        for number, layer in enumerate(weights.layers):
            queries, keys, values = self._project(layer, x, rotation)
            cache.write(number, index, keys.reshape(-1, dim), values.reshape(-1, dim))
            past_keys = cache.keys[number, :rows, :, :length]
            past_values = cache.values[number, :rows, :, :length]
            grouped = queries.reshape(rows, kv_heads, heads // kv_heads, dim)
            scores = torch.matmul(grouped, past_keys.transpose(-1, -2)).mul_(scale).add_(mask)
            attended = torch.matmul(scores.float().softmax(-1).to(self.dtype), past_values)
            x = _after_attention(layer, x, attended.reshape(rows, heads * dim), config.rms_eps)
        return self.logits(weights, x)

    def prefill(
        self, weights: Weights, cache: KVCache | None, tokens: Tensor, rows: Tensor | None, *, hidden: bool
    ) -> Tensor | None:
        """Run whole prompts, int64 [batch, longest], padded on the right with any id.

        With a cache, keys and values go to positions 0…longest−1 of `rows` (int64 [batch]); those of the padding are
        leftovers in the cache's sense. With `hidden`, returns hidden states [batch, longest, hidden] before the final
        norm; otherwise the last layer stops once its keys are written.
        """
        config = self.config
        batch, longest = tokens.shape
        heads, dim = config.heads, config.head_dim
        rotation = self._rotation[:longest].repeat(batch, 1)[:, None]
        index = None
        if cache is not None and rows is not None:
            index = cache.flat_index(rows.repeat_interleave(longest), self._positions[:longest].repeat(batch))
        x = F.embedding(tokens.reshape(-1), weights.embedding)
        for number, layer in enumerate(weights.layers):
            queries, keys, values = self._project(layer, x, rotation)
            if cache is not None and index is not None:
                cache.write(number, index, keys.reshape(-1, dim), values.reshape(-1, dim))
            if not hidden and number == config.layers - 1:
                return None
            attended = F.scaled_dot_product_attention(
                queries.reshape(batch, longest, heads, dim).transpose(1, 2),
                keys.reshape(batch, longest, config.kv_heads, dim).transpose(1, 2),
                values.reshape(batch, longest, config.kv_heads, dim).transpose(1, 2),
                is_causal=True,
                enable_gqa=heads != config.kv_heads,
            )
            flat = attended.transpose(1, 2).reshape(batch * longest, heads * dim)
            x = _after_attention(layer, x, flat, config.rms_eps)
        return x.view(batch, longest, config.hidden)

    def logits(self, weights: Weights, hidden: Tensor) -> Tensor:
        """Next-token logits of hidden states [n, hidden], float32 [n, vocab]."""
        normed = F.rms_norm(hidden, (self.config.hidden,), weights.final_norm, self.config.rms_eps)
        return _float32_logits(normed, weights.head) if self._fp32_head else F.linear(normed, weights.head).float()

    def _project(self, layer: Layer, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values of [n, hidden], each [n, its heads, head_dim]."""
        config = self.config
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        normed = F.rms_norm(x, (config.hidden,), layer.input_norm, config.rms_eps)
        fused = add(layer.adapter.qkv, F.linear(normed, layer.qkv, layer.qkv_bias), normed)
        fused = fused.view(-1, heads + 2 * kv_heads, dim)
        rotated, values = fused[:, : heads + kv_heads], fused[:, heads + kv_heads :]
        if layer.qk_norm is not None:
            rotated = F.rms_norm(rotated, (dim,), None, config.rms_eps).mul_(layer.qk_norm)
        pairs = torch.view_as_complex(rotated.float().reshape(-1, heads + kv_heads, dim // 2, 2))
        turned = torch.view_as_real(pairs * rotation).flatten(2).to(self.dtype)
        return turned[:, :heads], turned[:, heads:], values


def _after_attention(layer: Layer, x: Tensor, attended: Tensor, eps: float) -> Tensor:
    """Output projection, residuals and the gated MLP."""
    if layer.out_bias is not None:
        x = x + layer.out_bias
    x = add(layer.adapter.out, torch.addmm(x, attended, layer.out.t()), attended)
    normed = F.rms_norm(x, (x.shape[-1],), layer.post_norm, eps)
    gate, up = add(layer.adapter.gate_up, F.linear(normed, layer.gate_up), normed).chunk(2, -1)
    inner = F.silu(gate).mul_(up)
    return add(layer.adapter.down, torch.addmm(x, inner, layer.down.t()), inner)


def _float32_logits(normed: Tensor, head: Tensor) -> Tensor:
    """Logits that were never rounded to the weights' precision. A part of the output layer is cast at a time, so that
    the weights in use stay those that were published, once.
    """
    states, rows = normed.float(), max(1, _TILE_ELEMENTS // head.shape[1])
    logits = states.new_empty(len(states), len(head))
    for start in range(0, len(head), rows):
        torch.mm(states, head[start : start + rows].float().T, out=logits[:, start : start + rows])
    return logits


def _rotary_table(config: ModelConfig, context: int) -> Tensor:
    """Unit complex numbers [context, head_dim / 2]: the rotation of each pair at each position."""
    frequencies = 1.0 / (
        config.rope_theta ** (torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    )
    scaling = config.llama3_rope
    if scaling is not None:
        wavelengths = 2 * math.pi / frequencies
        low = scaling.original_context / scaling.low_freq_factor
        high = scaling.original_context / scaling.high_freq_factor
        ramp = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        blended = (1 - ramp) * frequencies / scaling.factor + ramp * frequencies
        scaled = torch.where(wavelengths > low, frequencies / scaling.factor, blended)
        frequencies = torch.where(wavelengths < high, frequencies, scaled)
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)
