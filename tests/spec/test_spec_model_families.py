"""Which model families are trained, by their configuration alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from areal.errors import DataError
from areal.spec.model_families import (
    COMPARED,
    EMBEDDED,
    LIBRARY,
    WITHOUT_SCORES,
    refuse_unclassifying,
    refuse_unscorable,
    refuse_unserved,
    refuse_untrainable,
)

from tools.pages import families

TAKEN: dict[str, Any] = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h"}
DENSE: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, no causal language model"),
        ({"model_type": None}, "no model_type"),
        ({"model_type": "video_transformer", "architectures": None}, "video_transformer is no family of causal"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping changes its logits"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"num_experts": 128}, "mixture of experts of a family that wasn't compared, llama"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers of linear_attention"),
        ({"layer_types": ["conv", "full_attention", "mamba"]}, "layers of conv, mamba"),
        ({"model_type": "phi"}, "the family phi has an output layer that is more than a matrix"),
        ({"model_type": "falcon"}, "names its transformer blocks otherwise"),
        ({"model_type": "bloom"}, "an attention that this trainer doesn't compute"),
        ({"model_type": "mimo", "auto_map": {"AutoConfig": "x.Y"}}, "mimo is loaded by code of its own"),
        ({"quantization_config": {"quant_method": "fp8"}}, "is quantised \\(fp8\\)"),
        (
            {"model_type": "qwen3_5", "text_config": {"quantization_config": None}, "quantization_config": {"bits": 4}},
            "is quantised",
        ),
        ({"dim_model_base": 256}, "dim_model_base changes its logits"),
        ({"model_type": "zamba2", "mamba_d_state": 128}, "layers of zamba2"),
        ({"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}, "layers of mamba2"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_in_words(change, words):
    with pytest.raises(DataError, match=words) as refused:
        refuse_untrainable({**DENSE, **change}, "models/mine")
    assert refused.value.fix


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"logits_scaling": 1.0, "num_experts": 0},
        {"model_type": "of_next_year"},
        {"model_type": "qwen3_moe", "num_experts": 128},
        {"model_type": "qwen3_next", "num_experts": 512, "layer_types": ["linear_attention", "full_attention"]},
        {
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": {"model_type": "qwen3_5_text", "layer_types": ["linear_attention"]},
        },
        {  # as released: the text's sizes beside the tower's
            "model_type": "qwen2_5_vl",
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "vision_config": {"depth": 32},
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        },
        {
            "model_type": "qwen3_vl_moe",
            "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            "vision_config": {"depth": 27},
            "text_config": {"model_type": "qwen3_vl_moe_text", "num_experts": 128},
        },
    ],
)
def test_models_that_were_compared_or_are_tried_are_taken(change):
    assert refuse_untrainable({**DENSE, **change}, "models/mine") is None


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]},
        {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]},
        {"model_type": "qwen3_omni_moe", "architectures": ["Qwen3OmniMoeForConditionalGeneration"]},
        {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "x"}},
    ],
)
def test_what_no_module_serves_in_a_batch_is_refused(change):
    assert refuse_unserved({**DENSE, **change, "quantization_config": None, **TAKEN}, "models/mine") is None
    with pytest.raises(DataError, match="does not serve models/mine"):
        refuse_unserved({**DENSE, **change}, "models/mine")


def test_the_families_of_the_library_are_those_of_the_version_that_is_pinned():
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    assert set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) == LIBRARY


def test_what_the_embedded_engine_computes_was_compared_in_the_trainer():
    assert {name.removesuffix("ForCausalLM").lower() for name in EMBEDDED} <= set(COMPARED)


def test_a_reward_model_starts_from_a_family_that_transformers_can_classify_with():
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    known = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    assert {name for name in COMPARED if name not in known} == set(WITHOUT_SCORES)
    with pytest.raises(DataError, match="granite, of which there is no sequence-classification model"):
        refuse_unscorable({"model_type": "granite"}, "models/mine")
    with pytest.raises(DataError, match="qwen3_moe: reward models"):
        refuse_unscorable({"model_type": "qwen3_moe"}, "models/mine")


def test_the_page_has_each_compared_family_with_its_tests_and_engines():
    pytest.importorskip("transformers")
    text = families.render()
    assert text == families.PAGE.read_text(), "docs/models.md is old: `make docs`"
    cited = set(re.findall(r"test_trainer_windows\[(\w+)\]", text))
    assert cited == families.windowed_families() <= set(COMPARED)
    assert "Qwen3ForCausalLM" in families.sglang_classes()


SCORER: dict[str, Any] = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "score"}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "is a LlamaForCausalLM, no sequence-classification model"),
        ({"architectures": None}, "model without architecture"),
        ({"id2label": {"0": "bad", "1": "good"}}, "has 2 labels"),
        ({"id2label": None}, "has 2 labels"),
        ({"id2label": None, "num_labels": 3}, "has 3 labels"),
    ],
)
def test_what_gives_no_single_score_is_refused_as_a_reward_model(change, words):
    assert refuse_unclassifying(SCORER, "models/mine") is None
    with pytest.raises(DataError, match=words):
        refuse_unclassifying({**SCORER, **change}, "models/mine")
