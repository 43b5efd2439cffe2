"""The memory plan by its closed forms: golden figures of known models, what fits, what doesn't and which knob helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from admit_shapes import QWEN3_8B, QWEN3_32B, QWEN25_7B
from areal.admit.memory.rank import (
    bytes_a_token,
    fewest_ranks,
    host_bytes,
    host_state_bytes,
    kept_outside,
    longest_that_fits,
    plan_start,
    plan_trainer,
)
from areal.admit.memory.shape import shape_of
from areal.admit.memory.volume import disk_bytes, plan_server

GIB, MIB = 1 << 30, 1 << 20
CARD = int(79.6 * GIB)  # what a card of 80 GB shows

EIGHT = {"ranks": 8, "tokens": 4096, "precision": "bfloat16", "attention": "varlen", "recompute": "full"}


@pytest.mark.parametrize(
    ("config", "parameters", "none_mib", "full_gib_at_32k"),
    [(QWEN25_7B, 7.616e9, 6.35, 13.4), (QWEN3_8B, 8.191e9, 7.81, 15.9), (QWEN3_32B, 32.762e9, 24.9, 32.5)],
    ids=["Qwen2.5-7B", "Qwen3-8B", "Qwen3-32B"],
)
def test_the_figures_of_known_models(config, parameters, none_mib, full_gib_at_32k):
    shape = shape_of(config)
    assert shape.parameters == pytest.approx(parameters, rel=1e-3)
    assert bytes_a_token(shape, 2, "dense", "none") / MIB == pytest.approx(none_mib, rel=0.01)
    inside = bytes_a_token(shape, 2, "dense", "full") - kept_outside(shape, 2)
    assert inside * 32768 / GIB == pytest.approx(full_gib_at_32k, rel=0.01)


_TEXT = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
_PATCHES = {"spatial_merge_size": 2, "temporal_patch_size": 2}
_QWEN2 = {"depth": 32, "in_chans": 3, "patch_size": 14, **_PATCHES}
_SMALL = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
_LARGE = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}
_EXPERTS = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}


def reads_images(family, sizes, tower, *, tied=False, **more):
    """A config.json as released: the text's sizes inside since Qwen3, beside before."""
    text = {**dict(zip(_TEXT, sizes, strict=True)), "vocab_size": 152064 if sizes[0] == 3584 else 151936, **more}
    if family.startswith("qwen3"):
        tower = {"patch_size": 16, "num_position_embeddings": 2304, "out_hidden_size": sizes[0], **_PATCHES, **tower}
        text = {"text_config": {**text, "head_dim": 128, "model_type": f"{family}_text"}}
    return {"model_type": family, "tie_word_embeddings": tied, **text, "vision_config": tower}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (reads_images("qwen2_vl", (1536, 8960, 12, 2, 28), {**_QWEN2, "embed_dim": 1280, "mlp_ratio": 4,
            "hidden_size": 1536}, tied=True), 2_208_985_600),
        (reads_images("qwen2_5_vl", (2048, 11008, 16, 2, 36), {**_QWEN2, "hidden_size": 1280, "intermediate_size": 3420,
            "out_hidden_size": 2048}, tied=True), 3_754_622_976),
        (reads_images("qwen2_5_vl", (3584, 18944, 28, 4, 28), {**_QWEN2, "hidden_size": 1280, "intermediate_size": 3420,
            "out_hidden_size": 3584}), 8_292_166_656),
        (reads_images("qwen3_vl", (2560, 9728, 32, 8, 36), _SMALL, tied=True), 4_437_815_808),
        (reads_images("qwen3_vl", (4096, 12288, 32, 8, 36), _LARGE), 8_767_123_696),
        (reads_images("qwen3_vl_moe", (2048, 6144, 32, 4, 48), _LARGE, **_EXPERTS), 31_070_754_032),
    ],
    ids=["Qwen2-VL-2B", "Qwen2.5-VL-3B", "Qwen2.5-VL-7B", "Qwen3-VL-4B", "Qwen3-VL-8B", "Qwen3-VL-30B-A3B"],
)  # fmt: skip
def test_released_models_of_images_have_as_many_parameters_as_their_files(config, parameters):
    shape = shape_of(config)
    assert shape.all_parameters == parameters
    plan = plan_trainer(shape, **EIGHT)
    tower = [line.size for line in plan.lines if "tower" in line.what]
    assert shape.tower * 4 // 8 in tower
    blind = plan_trainer(replace(shape, tower=0, pixels=0), **EIGHT)
    assert plan.total - blind.total >= shape.tower * 4 // 8 + 4096 * shape.pixels * 4
    server, alone = (plan_server(one, CARD, parts=1, dtype="bfloat16", share=None) for one in
                     (shape, replace(shape, tower=0)))  # fmt: skip
    assert server.weights - alone.weights == 2 * shape.tower


def test_eight_cards_of_80_gb_train_8b_on_six_thousand_tokens_and_not_on_eight():
    shape = shape_of(QWEN3_8B)
    eight = plan_trainer(shape, ranks=8, tokens=8192, precision="bfloat16", attention="dense", recompute="none")
    assert 90 < eight.total / GIB < 95, "refused: 93 GiB of 79.6"
    assert {line.what.split()[0]: round(line.size / GIB, 1) for line in eight.lines[:3]} == {
        "weights,": 15.3, "activations": 62.7, "attention": 4.5,
    }  # fmt: skip
    longest = longest_that_fits(shape, CARD, ranks=8, precision="bfloat16", attention="dense", recompute="none")
    assert 6000 < longest < 7000
    full = plan_trainer(shape, ranks=8, tokens=8192, precision="bfloat16", attention="varlen", recompute="full")
    assert full.total < CARD / 2


def test_an_adapter_of_8b_trains_on_one_card_with_an_optimizer_of_its_own_size_only():
    shape = shape_of(QWEN3_8B)
    linears = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    trained = shape.adapter_parameters(32, linears)
    assert trained == pytest.approx(87.3e6, rel=1e-3)
    numerics = {"ranks": 1, "tokens": 8192, "precision": "bfloat16", "attention": "varlen", "recompute": "full"}
    plan = plan_trainer(shape, **numerics, trained=trained)
    sizes = {line.what.split()[0]: line.size for line in plan.lines}
    assert sizes["frozen"] == 2 * shape.parameters
    assert sizes["adapter,"] == 16 * trained
    assert sizes["embedding"] == 2 * shape.root_parameters
    assert plan.total < CARD < plan_trainer(shape, **numerics).total
    assert disk_bytes(shape.parameters, checkpoints=2, dtype="bfloat16", trained=trained) == trained * (3 * 12 + 3 * 2)


def test_a_teacher_is_held_in_float32_beside_its_student_and_its_head_whole():
    student, teacher = shape_of(QWEN3_8B), shape_of(QWEN3_32B)
    alone, both = (plan_trainer(student, **EIGHT, teacher=one) for one in (None, teacher))
    assert both.total - alone.total == teacher.parameters * 4 // 8 + teacher.root_parameters * 2
    fewer = {name: value for name, value in EIGHT.items() if name != "ranks"}
    assert fewest_ranks(student, CARD, **fewer) < fewest_ranks(student, CARD, **fewer, teacher=teacher)


def test_a_reference_is_frozen_in_float32_and_an_adapters_base_is_one():
    shape = shape_of(QWEN3_8B)
    alone, both = (plan_trainer(shape, **EIGHT, reference=one) for one in (False, True))
    (added,) = set(both.lines) - set(alone.lines)
    assert (added.what, added.size) == ("the KL reference's share", shape.parameters * 4 // 8)
    assert added.size / GIB == pytest.approx(3.81, rel=0.01)
    adapted = [plan_trainer(shape, **EIGHT, reference=one, trained=87_000_000) for one in (False, True)]
    assert adapted[0] == adapted[1]


def test_an_offloaded_reference_costs_a_backward_pass_nothing():
    shape = shape_of(QWEN3_8B)
    alone = plan_trainer(shape, **EIGHT)
    away = {"reference": True, "offloaded": frozenset({"reference"})}
    assert plan_trainer(shape, **EIGHT, **away) == alone
    assert host_bytes(shape, 8, away) == shape.parameters * 4 // 8
    assert host_bytes(shape, 8, {**away, "trained": 87_000_000}) == 0, "an adapter's base is the reference"


def test_an_offloaded_teacher_is_counted_while_it_is_asked_beside_idle_states():
    student, teacher = shape_of(QWEN3_8B), shape_of(QWEN3_32B)
    away = {"teacher": teacher, "offloaded": frozenset({"teacher"}), "critic": True}
    plan, stays = plan_trainer(student, **EIGHT, **away), plan_trainer(student, **EIGHT, teacher=teacher, critic=True)
    sizes = {line.what: line.size for line in plan.lines}
    assert sizes["the teacher's share while it is asked"] == teacher.parameters * 4 // 8
    assert sizes["the rank's share of the policy, without gradients"] == student.parameters * 12 // 8
    assert sizes["the critic's share with its optimizer"] == student.value_model.parameters * 12 // 8
    assert plan.total < stays.total
    both = plan_trainer(student, **EIGHT, **away, reference=True)
    assert both.total - plan.total == student.parameters * 4 // 8, "the reference stays while the teacher is asked"


def test_a_critic_has_no_output_layer_and_no_gradients_while_the_policy_has_some():
    shape = shape_of(QWEN3_8B)
    scorer = shape.parameters - 151936 * 4096 + 4096
    assert shape.value_model.parameters == scorer
    alone, both = (plan_trainer(shape, **EIGHT, critic=one) for one in (False, True))
    (added,) = set(both.lines) - set(alone.lines)
    assert (added.what, added.size) == ("the critic's share with its optimizer", scorer * 12 // 8)
    assert added.size / GIB == pytest.approx(10.6, rel=0.01)
    adapted = {line.what: line.size for line in plan_trainer(shape, **EIGHT, critic=True, trained=87_000_000).lines}
    assert adapted["the critic's share with its optimizer"] == scorer * 16 // 8, "its gradients are the largest"


def test_an_optimizer_s_state_takes_less_in_bfloat16_and_nothing_but_masters_on_the_host():
    shape = shape_of(QWEN3_8B)
    kinds = {kind: plan_trainer(shape, **EIGHT, state=kind) for kind in ("float32", "bfloat16", "cpu")}
    assert [plan.lines[0].size * 8 // shape.parameters for plan in kinds.values()] == [16, 12, 8]
    host = {kind: host_state_bytes(shape, 8, {"state": kind}) for kind in kinds}
    assert host == {"float32": 0, "bfloat16": 0, "cpu": shape.parameters * 12 // 8}
    assert host_state_bytes(shape, 8, {"state": "cpu", "trained": 800}) == 1200, "an adapter's alone"
    both = shape.parameters + shape.value_model.parameters
    assert host_state_bytes(shape, 8, {"state": "cpu", "critic": True}) == both * 12 // 8
    disk = {kind: disk_bytes(1000, checkpoints=1, dtype="bfloat16", state=kind) - 6000 for kind in kinds}
    assert disk == {"float32": 24000, "bfloat16": 16000, "cpu": 24000}


def test_a_reward_model_has_no_logits():
    shape = shape_of(QWEN3_8B)
    plans = [{line.what: line.size for line in plan_trainer(one, **EIGHT).lines} for one in (shape, shape.value_model)]
    assert "a chunk of logits" in plans[0].keys() - plans[1].keys()
    assert plans[1]["embedding and head, gathered, and the head's gradient"] == (151936 * 4096 + 2 * 4096) * 2


def test_one_rank_drops_layers_as_several_do():
    shape = shape_of(QWEN25_7B)
    one, many = (plan_trainer(shape, **{**EIGHT, "ranks": ranks, "tokens": 32768}) for ranks in (1, 8))
    assert one.total - many.total == sum(shape.parameters * 16 // ranks * sign for ranks, sign in ((1, 1), (8, -1)))


def test_the_start_is_the_largest_moment_of_an_adapter_on_one_rank():
    shape = shape_of(QWEN3_8B)
    alone = {**EIGHT, "ranks": 1, "trained": 87_000_000}
    start = plan_start(shape, 1, 4096, "bfloat16", {"trained": 87_000_000})
    assert start.total / GIB == pytest.approx((2 + 4) * 8.19e9 / GIB + 10 + 0.7 + 0.3 + 1.5, rel=0.02)
    assert plan_trainer(shape, **alone).total < plan_trainer(shape, **alone, canary=True).total == start.total


def test_keeping_less_goes_from_none_to_offload():
    shape = shape_of(QWEN3_8B)
    modes = [bytes_a_token(shape, 2, "varlen", mode) for mode in ("none", "selective", "full", "offload")]
    assert modes == sorted(modes, reverse=True)
    assert [round(one / MIB, 2) for one in modes[1:3]] == pytest.approx([2.0, 0.5], rel=0.1)


def test_more_ranks_help_states_but_not_activations():
    shape = shape_of(QWEN3_32B)
    assert longest_that_fits(shape, CARD, ranks=8, precision="bfloat16", attention="dense", recompute="none") < 512
    assert fewest_ranks(shape, CARD, tokens=1024, precision="bfloat16", attention="dense", recompute="none") == 16
    assert fewest_ranks(shape, CARD, tokens=8192, precision="bfloat16", attention="dense", recompute="none") is None


def test_a_server_s_cache_is_what_weights_leave():
    shape = shape_of(QWEN3_8B)
    plan = plan_server(shape, CARD, parts=1, dtype="bfloat16", share=0.85)
    assert plan.weights / 1e9 == pytest.approx(16.4, rel=0.01)
    assert plan.cache_tokens == pytest.approx((CARD * 0.85 - 16.38e9) / (144 << 10), rel=0.01), "144 KiB a token"
    assert not plan_server(shape_of(QWEN3_32B), 40 * GIB, parts=1, dtype="bfloat16", share=None).fits
    assert plan_server(shape_of(QWEN3_32B), CARD, parts=4, dtype="bfloat16", share=None).fits


def test_disk_is_checkpoints_and_versions():
    assert disk_bytes(8_190_000_000, checkpoints=2, dtype="bfloat16") / 1e9 == pytest.approx(
        3 * 98.3 + 3 * 16.4, rel=0.01
    )


@pytest.mark.parametrize("change", [{"model_type": "mamba"}, {"mlp_bias": True}, {"hidden_size": None}])
def test_no_plan_is_made_of_a_family_that_the_forms_do_not_know(change):
    assert shape_of({**QWEN3_8B, **change}) is None
