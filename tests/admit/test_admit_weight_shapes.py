"""Weights against their configuration: right models of all families are quiet, wrong ones are found."""

from __future__ import annotations

import copy
import gzip
import json
import random
from pathlib import Path

import pytest
from areal.admit.weight_shapes import WeightFiles, WeightOpinion, look_at_shapes
from areal.spec.model_families import COMPARED, TIED
from areal.weights.safetensors_format import TensorHeader
from support.family_models import FAMILIES, facts, made
from weight_mutants import MUTANTS

KNOWN = json.loads(gzip.decompress((Path(__file__).parent / "families.json.gz").read_bytes()))


def opinion(config: dict, shapes: dict, dtype: str = "BF16") -> WeightOpinion:
    tensors = {name: TensorHeader(name, dtype, tuple(shape), 0, 0) for name, shape in shapes.items()}
    return look_at_shapes(config, WeightFiles(tensors))


def test_matrices_that_experts_have_are_none_to_be_adapted():
    names = ["self_attn.q_proj", "mlp.experts.0.gate_proj", "mlp.shared_experts.gate_proj", "mlp.gate"]
    tensors = {f"model.layers.0.{n}.weight": TensorHeader(n, "BF16", (4, 4), 0, 0) for n in names}
    assert WeightFiles(tensors).matrices == {"q_proj", "gate"}


@pytest.mark.parametrize("family", KNOWN)
def test_a_right_model_is_quiet(family):
    assert opinion(**KNOWN[family]) == WeightOpinion(())


def test_nineteen_in_twenty_wrong_models_are_found():
    rng, tried, missed = random.Random(3), 0, []
    for family, known in KNOWN.items():
        for kind, mutate in MUTANTS.items():
            changed = copy.deepcopy(known)
            if not mutate(changed["config"], changed["shapes"], rng):
                continue
            tried += 1
            if not opinion(**changed).faults:
                missed.append((family, kind))
    assert tried > 500
    assert len(missed) <= tried // 20, missed


@pytest.mark.component
@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_the_facts_of_families_are_what_transformers_saves(family, tmp_path):
    pytest.importorskip("transformers")
    found, known = facts(made(family, tmp_path)), KNOWN[family]
    assert found["shapes"] == known["shapes"]
    assert {**found["config"], "transformers_version": ""} == {**known["config"], "transformers_version": ""}


def test_which_families_are_tied_unless_they_say_otherwise():
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    assert {name for name in COMPARED if mapping[name]().tie_word_embeddings} == set(TIED)


def test_a_head_may_lack_where_the_family_is_tied_and_says_nothing():
    family = KNOWN["gemma"]
    config = {key: value for key, value in family["config"].items() if key != "tie_word_embeddings"}
    assert opinion(config, family["shapes"]) == WeightOpinion(())
    assert opinion({**config, "model_type": "qwen3"}, family["shapes"]).faults


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "U8", "I32"])
def test_quantised_weights_are_refused_by_their_dtype(dtype):
    (said,) = opinion(**KNOWN["llama"], dtype=dtype).faults
    assert said.endswith(f"is {dtype}: quantised weights can't be trained")


def test_a_configuration_without_sizes_is_not_looked_at_and_says_so():
    config = {"model_type": "of_next_year", "architectures": ["NextForCausalLM"]}
    assert opinion(config, KNOWN["llama"]["shapes"]) == WeightOpinion(
        (), "the weights' shapes: config.json names no hidden_size"
    )


def test_layers_that_predict_ahead_and_towers_of_vision_are_nobodys_business():
    known = copy.deepcopy(KNOWN["qwen3"])
    shapes = known["shapes"]
    shapes |= {f"model.layers.2.{part}.weight": [48, 48] for part in ("eh_proj", "enorm", "shared_head.head")}
    shapes |= {"visual.blocks.7.attn.qkv_proj.weight": [9, 3], "mtp.layers.0.mlp.up_proj.weight": [7, 7]}
    assert opinion(**known) == WeightOpinion(())


def test_a_matrix_of_an_adapter_is_no_weight_of_a_model():
    known = copy.deepcopy(KNOWN["llama"])
    known["shapes"]["model.layers.0.self_attn.q_proj.lora_A.default.weight"] = [8, 48]
    assert "adapter that wasn't merged" in opinion(**known).faults[0]
