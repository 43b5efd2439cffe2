"""Model configuration, read from a Hugging Face directory.

Owns which architectures and which of their options the forward pass implements. Whatever it does not implement is
refused here, so that the engine never samples from a model it computes wrongly.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.errors import DataError
from areal.spec.model_families import EMBEDDED, file_end_ids, refuse_unserved, text_part

_ASIDE = re.compile(r"architectures|.*_token_id|transformers_version|_name_or_path|(torch_)?dtype|use_cache")
"""Entries that make no other module."""


@dataclass(frozen=True)
class Llama3Rope:
    """Frequency scaling of Llama 3.1 and later."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder-only model."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rms_eps: float
    rope_theta: float
    llama3_rope: Llama3Rope | None
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]
    module: Mapping[str, Any] | None = None  # what makes the Hugging Face module that serves it; None: not served by it

    @classmethod
    def from_dir(cls, path: Path) -> "ModelConfig":
        """Read `config.json` and `generation_config.json`. Raises DataError naming what is unsupported."""
        raw = _read_json(path / "config.json")
        if raw is None:
            raise DataError(f"{path} has no config.json", fix="give the directory of a Hugging Face model")
        return cls.of(raw, path)

    @classmethod
    def of(cls, raw: Mapping[str, Any], path: Path) -> "ModelConfig":
        """Of a config.json that was read already, in the directory `path`."""
        architecture = (raw.get("architectures") or ["unknown"])[0]
        refuse_unserved(raw, str(path))
        by_hand = architecture in EMBEDDED
        text = raw if by_hand else text_part(raw)
        unsupported = [name for name in ("use_sliding_window", "mlp_bias") if raw.get(name)]
        if raw.get("hidden_act", "silu") != "silu":
            unsupported.append(f"hidden_act {raw['hidden_act']}")
        if by_hand and unsupported:
            raise DataError(
                f"the embedded engine does not implement {', '.join(unsupported)} of {path}",
                fix="use generation.engine.type: sglang for this model",
            )
        heads, hidden = _size(text, "num_attention_heads", "n_head"), _size(text, "hidden_size", "n_embd")
        widths = [int(text.get(name) or 0) for name in ("head_dim", "global_head_dim", "qk_head_dim", "v_head_dim")]
        theta, llama3 = _rope(raw, path) if by_hand else (0.0, None)
        return cls(
            architecture=architecture,
            layers=_size(text, "num_hidden_layers", "n_layer", "layers_block_type"),
            hidden=hidden,
            heads=heads,
            kv_heads=int(text.get("num_key_value_heads") or heads),
            head_dim=max(widths) or hidden // heads,
            vocab=int(text["vocab_size"]),
            context=_size(text, "max_position_embeddings", "n_positions", "model_max_length"),
            rms_eps=float(raw["rms_norm_eps"]) if by_hand else 0.0,
            rope_theta=theta,
            llama3_rope=llama3,
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=tuple(sorted(file_end_ids(raw, _read_json(path / "generation_config.json") or {}))),
            module=None if by_hand else {name: value for name, value in raw.items() if not _ASIDE.fullmatch(name)},
        )


def _size(raw: Mapping[str, Any], *names: str) -> int:
    """The first of these entries that is given: a number, or a list with an element for each layer."""
    found = next((raw[name] for name in names if raw.get(name) is not None), None)
    if found is None:
        raise KeyError(names[0])
    return len(found) if isinstance(found, list) else int(found)


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}", fix="write the model again") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a JSON object", fix="write the model again")
    return value


def _rope(raw: Mapping[str, Any], path: Path) -> tuple[float, Llama3Rope | None]:
    """Rotary base and scaling; newer files nest both in `rope_parameters`."""
    nested = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or nested
    theta = float(nested.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "llama3":
        return theta, Llama3Rope(
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_context=int(scaling["original_max_position_embeddings"]),
        )
    raise DataError(
        f"the embedded engine does not implement rope type {kind} of {path}",
        fix="use generation.engine.type: sglang for this model",
    )
