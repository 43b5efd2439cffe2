"""Ways in which weights contradict their configuration: each makes a wrong model of a right one, or says it can't."""

# ruff: noqa: E501 (a case a line)
from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

Config, Shapes = dict[str, Any], dict[str, list[int]]
Mutant = Callable[[Config, Shapes, random.Random], bool]
_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.")


def _text(config: Config) -> Config:
    return config.get("text_config", config)


def _one(shapes: Shapes, pattern: str, rng: random.Random) -> str | None:
    found = sorted(name for name in shapes if re.search(pattern, name))
    return rng.choice(found) if found else None


def _reshaped(pattern: str, change: Callable[[list[int]], list[int]]) -> Mutant:
    def mutate(config: Config, shapes: Shapes, rng: random.Random) -> bool:
        name = _one(shapes, pattern, rng)
        if name is None or change(shapes[name]) == shapes[name]:
            return False
        shapes[name] = change(shapes[name])
        return True

    return mutate


def _said(key: str, change: Callable[[int], int]) -> Mutant:
    """The configuration says another size than the weights have."""

    def mutate(config: Config, shapes: Shapes, rng: random.Random) -> bool:
        text = _text(config)
        if not isinstance(text.get(key), int) or isinstance(text[key], bool):
            return False
        text[key] = change(text[key])
        return True

    return mutate


def _inner(config: Config, shapes: Shapes, rng: random.Random) -> bool:
    """Of the MLP that the family has: a mixture without a dense layer reads no intermediate_size."""
    key = "moe_intermediate_size" if _text(config).get("moe_intermediate_size") else "intermediate_size"
    return _said(key, lambda size: size + 16)(config, shapes, rng)


def _key_heads(config: Config, shapes: Shapes, rng: random.Random) -> bool:
    """Latent attention reads no number of key heads."""
    if _text(config).get("kv_lora_rank"):
        return False
    return _said("num_key_value_heads", lambda heads: heads * 2 if heads < 4 else 2)(config, shapes, rng)


def _without(pattern: str) -> Mutant:
    def mutate(config: Config, shapes: Shapes, rng: random.Random) -> bool:
        name = _one(shapes, pattern, rng)
        return name is not None and shapes.pop(name) is not None

    return mutate


def _no_head(config: Config, shapes: Shapes, rng: random.Random) -> bool:
    head = _one(shapes, r"lm_head\.weight$", rng)
    if head is None:
        return False
    del shapes[head]
    config["tie_word_embeddings"] = False
    return True


def _other_prefix(config: Config, shapes: Shapes, rng: random.Random) -> bool:
    beginning = rng.choice(["module.", "base_model.model.", "policy."])
    for name in list(shapes):
        shapes[beginning + name] = shapes.pop(name)
    return True


def _no_layer(config: Config, shapes: Shapes, rng: random.Random) -> bool:
    numbers = sorted({found[1] for name in shapes if (found := _LAYER.search(name))})
    gone = rng.choice(numbers)
    for name in [name for name in shapes if (found := _LAYER.search(name)) and found[1] == gone]:
        del shapes[name]
    return True


def _strange_part(config: Config, shapes: Shapes, rng: random.Random) -> bool:
    name = _one(shapes, r"layers\.1\..*proj\.weight$", rng)
    if name is None:
        return False
    shapes[name.replace(".weight", ".lora_A.weight")] = [4, 48]
    return True


def _less(shape: list[int]) -> list[int]:
    return [shape[0] - 4, *shape[1:]]


MUTANTS: dict[str, Mutant] = {
    "an embedding of fewer tokens": _reshaped(r"embed_tokens\.weight$|embeddings\.weight$", lambda shape: [shape[0] - 8, shape[1]]),
    "another vocabulary is said": _said("vocab_size", lambda size: size + 64),
    "a head of fewer tokens": _reshaped(r"lm_head\.weight$", _less),
    "no head, and not tied": _no_head,
    "another hidden size is said": _said("hidden_size", lambda size: size * 2),
    "more layers are said": _said("num_hidden_layers", lambda layers: layers + 1),
    "fewer layers are said": _said("num_hidden_layers", lambda layers: layers - 1),
    "no such layer": _no_layer,
    "a layer without a part": _without(r"layers\.\d+\..*(proj|layernorm)\.weight$"),
    "a part that no other layer has": _strange_part,
    "a matrix turned round": _reshaped(r"layers\.\d+\..*(q_proj|k_proj|v_proj|up_proj|down_proj|gate_up_proj|qkv_proj|gate_proj)(\.weight)?$", lambda shape: shape[::-1]),
    "another number of key heads is said": _key_heads,
    "another inner width is said": _inner,
    "a norm of another width": _reshaped(r"layers\.\d+\.\w*norm\.weight$", _less),
    "no last norm": _without(r"^(model|backbone)\.(\w*norm\w*)\.weight$"),
    "names with another beginning": _other_prefix,
    "a narrower output of attention": _reshaped(r"layers\.\d+\..*(o_proj|out_proj|dense)\.weight$", _less),
}  # fmt: skip
