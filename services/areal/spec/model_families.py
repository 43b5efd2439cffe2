"""Model families: which causal language models the trainer takes, by their config.json, and why it refuses others.

The one table that `areal check`, the trainer and docs/models.md share. Pure: reads a configuration, never a weight.
A family that is in no list is tried: the trainer's check at start compares packed rows with separate ones first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal.errors import DataError

COMPARED = (
    "gemma", "gemma3_text", "glm4", "granite", "llama", "ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2",
    "qwen3", "smollm3", "starcoder2",
)  # fmt: skip
"""Values of `model_type` whose packed log-probabilities and published names were compared with Hugging Face's alone."""

EMBEDDED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM")
"""Architectures that the embedded engine computes."""

WITHOUT_SCORES = ("granite",)
"""Of the compared families, those that Hugging Face's library has no sequence-classification model of."""

TIED = ("gemma", "gemma3_text", "smollm3", "starcoder2")
"""Families whose output layer is the embedding unless config.json says otherwise."""

_LOGIT_SCALES = ("final_logit_softcapping", "logits_scaling", "logit_scale")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ATTENTION = ("full_attention", "sliding_attention")
_RECURRENT = ("falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv")


def refuse_untrainable(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError when the trainer would compute a model of this configuration wrongly, or publish it so.

    `where` names the model in the message. What only the loaded model shows (a bias of the output layer, the names of
    its blocks) is the trainer's to refuse.
    """
    named = config.get("architectures") or []
    if named and not str(named[0]).endswith("ForCausalLM"):
        raise DataError(f"{where} is a {named[0]}, no causal language model", fix="use a model …ForCausalLM")
    kind = config.get("model_type")
    if not kind:
        raise DataError(f"{where} has no model_type in its config.json", fix="save the model again")
    for name in _LOGIT_SCALES:
        if config.get(name) not in (None, 1, 1.0):
            raise DataError(f"the model's {name} changes its logits", fix="use a model without it")
    experts = [name for name in _EXPERTS if _count(config.get(name)) > 1]
    if experts:
        raise DataError(
            f"{where} is a mixture of experts ({experts[0]}: {config[experts[0]]}): a token that takes other experts "
            "in the trainer than in the engine has another log-probability",
            fix="use a dense model of the family",
        )
    layers = {str(layer) for layer in config.get("layer_types") or ()}
    strange = sorted(layers.difference(_ATTENTION)) or [str(kind)] * (kind in _RECURRENT)
    if strange:
        raise DataError(
            f"{where} has layers of {', '.join(strange)}, which carry one sequence's state into the next of a row",
            fix="use a model whose layers are all full or sliding attention",
        )


def refuse_unscorable(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError when a model of this configuration can be no reward model."""
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
