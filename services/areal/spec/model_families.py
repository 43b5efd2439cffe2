"""Model families: which causal language models the trainer takes, by their config.json, and why it refuses others.

The one table that `areal check`, the trainer and docs/models.md share. Pure: reads a configuration, never a weight.
A family that is in no list is tried: the trainer's check at start compares packed rows with separate ones first.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from areal.errors import DataError
from areal.yaml_file.table import read_table

_FAMILIES = read_table("areal.spec", "model_families.yaml")


def _families(kind: str) -> tuple[str, ...]:
    return tuple(_FAMILIES[kind])


COMPARED = _families("compared")
"""Values of `model_type` whose packed log-probabilities and published names were compared with Hugging Face's alone."""

EXPERTS = _families("experts")
"""Mixtures of experts that were compared likewise."""

HYBRIDS = _families("hybrids")
"""Families with recurrent layers that were compared likewise; some have experts, too."""

WRAPPED = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Models of images and text whose text part is trained as a language model, and that part's family."""

VISION: Mapping[str, str] = _FAMILIES["vision"]
"""Models of images and text that read images here, compared likewise, and the family of their text part."""

EMBEDDED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM")
"""Architectures that the embedded engine computes."""

WITH_SINKS = ("gpt_oss",)  # Of the compared families, those whose attention has sinks

MASK_ONLY = ("nemotron", "stablelm")
"""Of the compared families, those whose attention the library tells of nothing but a mask."""

WITHOUT_SCORES = ("apertus", "cwm", "ernie4_5", "granite")
"""Of the compared families, those that Hugging Face's library has no sequence-classification model of."""

TIED = ("ernie4_5", "gemma", "gemma3_text", "smollm3", "starcoder2")
"""Families whose output layer is the embedding unless config.json says otherwise."""

OTHER_BLOCKS = ("blt", "falcon", "gpt_bigcode", "hrm_text", "llama4", "llama4_text", "mllama", "mllama_text_model")
"""Families whose transformer blocks have other names than the trainer's."""

OTHER_HEADS = _families("other_heads")
"""Families whose output layer is more than a matrix."""

OTHER_ATTENTION = _families("other_attention")
"""Families whose attention Hugging Face's library computes in one way only, which the trainer doesn't use."""

DRAFTS = ("gemma4_assistant", "gemma4_unified_assistant")
"""Families that only draft tokens for another model."""

UNMADE = ("cohere_compass_text", "dbrx")
"""Families that this version of Hugging Face's library can't make of their own configurations."""

LIBRARY = frozenset(_FAMILIES["library"])
"""Families that Hugging Face's library has a causal language model of. Another that names Python code (`auto_map`)
needs that code, which isn't run here."""

OWN_CODE = _families("own_code")
"""Families known to need it, also where a configuration doesn't say so."""

_UNTRAINED = {
    "names its transformer blocks otherwise than this trainer expects": OTHER_BLOCKS,
    "has an output layer that is more than a matrix": OTHER_HEADS,
    "has an attention that this trainer doesn't compute": OTHER_ATTENTION,
    "only drafts tokens for another model": DRAFTS,
    "can't be made by the version of transformers that is installed": UNMADE,
}
_LOGIT_SCALES = ("attn_logit_softcapping", "final_logit_softcapping", "logits_scaling", "logit_scale", "dim_model_base")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
MASKED_GROUPS = "group_limited_greedy"  # DeepSeek-V2's way to choose experts, which can't be replayed
CHOSEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
_ATTENTION = ("full_attention", "sliding_attention")
_RECURRENT = ("falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv")
_STATE = ("mamba_d_state", "mamba_d_ssm", "ssm_state_size", "linear_attn_config", "hybrid_override_pattern")


def refuse_untrainable(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError when the trainer would compute a model of this configuration wrongly, or publish it so.

    `where` names the model in the message. What the loaded model shows (a bias of the output layer, the names of its
    blocks) is in this table, too: the trainer refuses by it before it loads anything.
    """
    kind = config.get("model_type")
    if inner := {**WRAPPED, **VISION}.get(str(kind)):  # older files have no part of its own for the text
        text, kind = text_part(config), inner
        method = config.get("quantization_config") or text.get("quantization_config")
        config = {**text, "quantization_config": method, "architectures": [], "model_type": kind}
    named = config.get("architectures") or []
    if named and not str(named[0]).endswith("ForCausalLM"):
        raise DataError(f"{where} is a {named[0]}, no causal language model", fix="use a model …ForCausalLM")
    if not config.get("architectures") and not (kind in LIBRARY or kind in (*OWN_CODE, *VISION.values(), None, "")):
        raise DataError(f"{where}: {kind} is no family of causal language models", fix="use a model …ForCausalLM")
    if not kind:
        raise DataError(f"{where} has no model_type in its config.json", fix="save the model again")
    for why, families in _UNTRAINED.items():
        if kind in families:
            raise DataError(f"{where}: the family {kind} {why}", fix="use a model of another family")
    if kind in OWN_CODE or (config.get("auto_map") and kind not in LIBRARY):
        raise DataError(
            f"{where}: the family {kind} is loaded by code of its own, which isn't run here",
            fix="use a model of a family that transformers has",
        )
    if method := config.get("quantization_config"):
        named = method.get("quant_method") if isinstance(method, Mapping) else None
        raise DataError(
            f"{where} is quantised{f' ({named})' if named else ''}: quantised weights can't be trained",
            fix="use the model's unquantised weights, and remove quantization_config where they are such already",
        )
    for name in _LOGIT_SCALES:
        if config.get(name) not in (None, 1, 1.0):
            raise DataError(f"the model's {name} changes its logits", fix="use a model without it")
    if is_mixture(config) and kind not in (*EXPERTS, *HYBRIDS, *VISION.values()):
        raise DataError(
            f"{where} is a mixture of experts of a family that wasn't compared, {kind}",
            fix=f"use one of {', '.join(EXPERTS)}, or a dense model",
        )
    layers = {str(layer) for layer in config.get("layer_types") or ()}
    recurrent = kind in _RECURRENT or any(config.get(name) for name in _STATE)
    strange = sorted(layers.difference(_ATTENTION)) or [str(kind)] * recurrent
    if strange and kind not in HYBRIDS:
        raise DataError(
            f"{where} has layers of {', '.join(strange)}, which carry one sequence's state into the next of a row",
            fix=f"use one of {', '.join(HYBRIDS)}, or a model whose layers are all full or sliding attention",
        )


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Whether a model's layers choose among experts."""
    text = text_part(config)
    return any(_count(text.get(name)) > 1 for name in EXPERT_COUNTS)


def routing(config: Mapping[str, Any]) -> tuple[int, tuple[int, ...], int, int] | None:
    """Layers, those with a router, experts and how many of them a token goes to: what `areal.values.routes.RouteShape`
    is made of. None for a model without experts, or whose choice can't be forced.

    What families say of layers without experts: the first so many (GLM-4, DeepSeek, LFM2), those that are named, all
    but each so many-th (Qwen), or a kind for each. Solar's files have GLM's field, and its model ignores it.
    """
    text = text_part(config)
    experts, chosen = (max(_count(text.get(name)) for name in names) for names in (EXPERT_COUNTS, CHOSEN_COUNTS))
    kinds = text.get("mlp_layer_types") or text.get("layers_block_type") or ()
    layers = _count(text.get("num_hidden_layers")) or len(kinds)
    if experts < 2 or not chosen or text.get("topk_method") == MASKED_GROUPS:
        return None
    first = max(_count(text.get(name)) for name in ("first_k_dense_replace", "num_dense_layers"))
    first, named = first if text.get("model_type") != "solar_open" else 0, text.get("mlp_only_layers") or ()
    step = _count(text.get("decoder_sparse_step")) or 1
    routed = (
        kinds[layer] in ("sparse", "moe") if len(kinds) == layers else
        layer >= first and layer not in named and (layer + 1) % step == 0
        for layer in range(layers)
    )  # fmt: skip
    return layers, tuple(layer for layer, has in enumerate(routed) if has), experts, chosen


def route_bytes(config: Mapping[str, Any]) -> int:
    """Bytes of a sampled token's routes, which a sample brings for routing replay; 0 for a model without experts."""
    if (told := routing(config)) is None:
        return 0
    layers, _, experts, chosen = told
    return layers * chosen * (1 + (experts > 255))


@cache
def family_cells() -> Mapping[str, Mapping[str, str]]:
    """What was seen on a tiny model, by family and column: `yes`, or `refused: why`. `make families` measures anew."""
    cells: dict[str, dict[str, str]] = json.loads(resources.files("areal.spec").joinpath("families.json").read_bytes())
    return cells


def refuse_columns(config: Mapping[str, Any], columns: Iterable[str], where: str) -> None:
    """Raise DataError for the first of the table's columns that a family's row refuses, as its trainer would."""
    kind = config.get("model_type")
    cells = family_cells().get(str(kind if kind in VISION else text_part(config).get("model_type")), {})
    for column in columns:
        if (told := cells.get(column, "yes")) != "yes":
            fix = "set trainer.attention: dense" if column == "segments" else "leave it out"
            raise DataError(f"{where}: {column} {told}", fix=f"{fix}, or use a model of another family")


def refuse_router_losses(config: Mapping[str, Any], where: str, *weights: float) -> None:
    """Raise DataError where router losses have weights and a model has no experts, or others than were compared."""
    kind = {**WRAPPED, **VISION}.get(str(config.get("model_type"))) or text_part(config).get("model_type")
    if any(weights) and not (is_mixture(config) and kind in _FAMILIES["router_losses"]):
        fix = f"remove trainer.router…Coefficient, or use one of {', '.join(_FAMILIES['router_losses'])}"
        why = "routers whose losses aren't computed" if is_mixture(config) else "no experts"
        raise DataError(f"{where}: router losses are not for the family {kind}, which has {why}", fix=fix)


def refuse_unserved(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError when the embedded engine has neither functions nor a Hugging Face module for a configuration."""
    named, kind = str((config.get("architectures") or ["unknown"])[0]), config.get("model_type")
    language = kind in LIBRARY and (named.endswith("ForCausalLM") or kind in WRAPPED)
    known = (language or kind in VISION) and kind not in (*OWN_CODE, *_RECURRENT)
    if named not in EMBEDDED and (not known or config.get("quantization_config")):
        raise DataError(
            f"the embedded engine does not serve {where} ({named}): it takes causal language models that transformers "
            "has, unquantised and with attention",
            fix=f"use one of {', '.join(EMBEDDED)}, or generation.engine.type: sglang",
        )


def refuse_unscorable(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError when a model of this configuration can be no reward model."""
    if config.get("model_type") in (*EXPERTS, *HYBRIDS, *WRAPPED, *VISION):
        raise DataError(
            f"{where} is a {config['model_type']}: reward models with experts, states or images weren't compared",
            fix="start a reward model from a dense family",
        )
    if config.get("model_type") in WITHOUT_SCORES:
        raise DataError(
            f"{where} is a {config['model_type']}, of which there is no sequence-classification model to export",
            fix="start a reward model from another family",
        )


def refuse_unclassifying(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError when a configuration is no reward model's: sequence classification with one label."""
    named = str((config.get("architectures") or ["model without architecture"])[0])
    fix = "name a model …ForSequenceClassification with one label, such as the one of a job of training RewardModel"
    if not named.endswith("ForSequenceClassification"):
        raise DataError(f"{where} is a {named}, no sequence-classification model", fix=fix)
    names = config.get("id2label")
    labels = len(names) if isinstance(names, Mapping) else config.get("num_labels", 2)  # the library's default
    if labels != 1:
        raise DataError(f"{where} has {labels} labels, and a score is one", fix=fix)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the language model: a wrapper's `text_config` before its own entries."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def file_end_ids(*files: Mapping[str, Any]) -> frozenset[int]:
    """Ids that end an answer by a model's config.json and generation_config.json: of both together, as SGLang has it;
    a wrapper's own and its text part's."""
    parts = [part for file in files for part in (file, file.get("text_config")) if isinstance(part, Mapping)]
    named = [part.get("eos_token_id") for part in parts]
    ids = [number for value in named for number in (value if isinstance(value, list) else [value])]
    return frozenset(number for number in ids if isinstance(number, int) and not isinstance(number, bool))


def is_tied(config: Mapping[str, Any]) -> bool | None:
    """Whether the output layer is the embedding; None where config.json leaves that to a family not known here."""
    text = text_part(config)
    said = [part["tie_word_embeddings"] for part in (text, config) if part.get("tie_word_embeddings") is not None]
    if said:
        return any(bool(value) for value in said)
    if text.get("model_type") in TIED:
        return True
    return False if text.get("model_type") in COMPARED else None


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
