"""Meshes of ranks: every world and mesh gives one rank's losses, gradient norms and tensors, and resumes another's.

A landing trains a family or two on each kind of mesh, `make nightly` more, `--all-meshes` every family on every mesh.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.forked_ranks import program
from support.mesh_ranks import SAVED, Case
from support.trainer_parts import VOCABULARY
from transformers import AutoConfig, AutoModelForCausalLM

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
MODELS = [f"{family}-{kind}" for family in ("qwen2", "qwen3", "llama", "mistral") for kind in ("tied", "untied")]
MESHES = [
    {"world": 2}, {"world": 2, "replicas": 2}, {"world": 4}, {"world": 4, "replicas": 2},
    {"world": 4, "replicas": 2, "reduce_always": True}, {"world": 4, "replicas": 4},
    {"world": 2, "tensor": 2}, {"world": 4, "tensor": 2, "recompute": "full"}, {"world": 4, "tensor": 2, "replicas": 2},
    {"world": 2, "context": 2}, {"world": 4, "context": 4, "attention": "varlen"},
    {"world": 4, "context": 2, "tensor": 2, "recompute": "full"}, {"world": 4, "context": 2, "replicas": 2},
    {"world": 2, "recompute": "full"},
]  # fmt: skip
FEW = {  # of each landing: replicas, tensor ranks, context ranks, two at a time; a window, experts, states
    "qwen3-untied": [4, 7, 10], "llama-tied": [8], "mistral-untied": [9], "qwen3_moe-untied": [0],
    "qwen3_5_text-untied": [13],
}  # fmt: skip
NIGHTLY = {
    "qwen2-tied": [3, 11], "qwen2-untied": [6, 9], "qwen3-untied": [4, 7, 10], "llama-tied": [0],
    "llama-untied": [8, 12], "mistral-untied": [9, 10],
    "qwen3_moe-untied": [2, 9], "qwen3_5_text-untied": [13],
}  # fmt: skip
MORE = {
    "mistral": {"sliding_window": 5},  # shorter than the sequences
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
}  # fmt: skip
UNSPLIT = ("qwen3_moe-untied", "qwen3_5_text-untied")  # no tensor ranks
MOVES = [{"world": 2, "tensor": 2}, {"world": 1}]  # from the last mesh of four ranks
MOVED = "qwen3-untied"  # the model whose checkpoints move in each landing


def saved(path: Path) -> Path:
    """A tiny model of the family and the kind that the directory's name says."""
    family, kind = path.name.split("-")
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **SIZES, **MORE.get(family, {}), tie_word_embeddings=kind == "tied")
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


@pytest.fixture(
    scope="module", params=[pytest.param(FEW, id="few"), pytest.param(NIGHTLY, id="more", marks=pytest.mark.nightly)]
)
def trained(request, tmp_path_factory):
    """By model: the case of one rank and the others, each with its line and its tensors."""
    home = tmp_path_factory.mktemp("mesh")
    every = {**NIGHTLY, **{model: range(len(MESHES)) for model in MODELS}}
    chosen = every if request.config.getoption("--all-meshes") else request.param
    cases = []
    for model, meshes in chosen.items():
        path = str(saved(home / model))
        cases += [Case(path, 1), *(Case(path, **MESHES[place]) for place in meshes)]
        four = [case for case in cases if case.model == path and case.world == 4]
        moves = MOVES[model in UNSPLIT : 2 * len(four)] if chosen is not FEW or model == MOVED else []
        cases += [Case(path, **move, resumes=str(home / four[-1].name)) for move in moves]
    student, teacher = (str(home / name) for name in ("qwen3-untied", "llama-tied"))
    taught = ({"world": 1}, MESHES[0], *([] if chosen is FEW else [MESHES[8]]))
    cases += [Case(student, teacher=teacher, **mesh) for mesh in taught]
    said = program("mesh_ranks", home, json.dumps([asdict(case) for case in cases]), timeout_s=580.0)
    by_model: dict[str, list] = {model: [] for model in [*chosen, "taught"]}
    for line in map(json.loads, said):
        assert not any(line["codes"]), (line["name"], line["errors"])
        files = sorted((home / line["name"]).glob("*.safetensors"))
        tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
        by_model["taught" if line["teacher"] else Path(line["model"]).name].append((line, tensors))
    return by_model


def test_every_mesh_has_one_ranks_losses_gradient_norms_and_logprobs(trained):
    for alone, *others in trained.values():
        expected = np.array(alone[0]["ranks"][0]["steps"])
        assert np.abs(expected[:, 1]).min() > 1e-3
        for line, _ in others:
            for rank in line["ranks"]:
                steps = np.array(rank["steps"])
                begins = SAVED if line["resumes"] else 0
                np.testing.assert_allclose(steps, expected[begins:], rtol=1e-6, atol=1e-6, err_msg=line["name"])


def test_every_mesh_gives_a_critic_one_ranks_gradient_and_values(trained):
    for alone, *others in trained.values():
        expected = alone[0]["ranks"][0]["critic"]
        for line, _ in others:
            for rank in line["ranks"]:
                if rank["critic"] is not None:
                    assert rank["critic"] == pytest.approx(expected, rel=1e-5), line["name"]


def test_every_mesh_publishes_one_ranks_tensors_each_once(trained):
    for (alone, expected), *others in trained.values():
        names = sorted(expected)
        assert alone["ranks"][0]["tensors"] == names
        for line, tensors in others:
            assert sorted(name for rank in line["ranks"] for name in rank["tensors"]) == names, line["name"]
            for name in names:
                torch.testing.assert_close(tensors[name], expected[name], rtol=0, atol=1e-6, msg=line["name"])


def test_checkpoints_move_from_four_ranks_to_two_and_to_one(trained):
    for (alone, _), *others in trained.values():
        for line, _ in (case for case in others if case[0]["resumes"]):
            assert line["world"] < 4
            for rank in line["ranks"]:
                ((_, norm, *_),) = rank["steps"]  # moments that were lost or mixed up change the tensors, not this
                assert norm == pytest.approx(alone["ranks"][0]["steps"][SAVED][1], rel=1e-6)


GATHERED = [(model, recompute) for model in ("qwen3-untied", "qwen3_moe-untied") for recompute in ("none", "full")]


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """By model and recomputation: the lines of ranks that gather layers ahead and of those that don't, and where."""
    home = tmp_path_factory.mktemp("gathered")
    paths = {model: str(saved(home / model)) for model in ("qwen3-untied", "qwen3_moe-untied")}
    cases = [
        Case(paths[model], 2, recompute=recompute, prefetch=prefetch)
        for model, recompute in GATHERED
        for prefetch in (True, False)
    ]
    lines = list(
        map(json.loads, program("mesh_ranks", home, json.dumps([asdict(case) for case in cases]), timeout_s=580.0))
    )
    return home, dict(zip(GATHERED, zip(lines[::2], lines[1::2], strict=True), strict=True))


@pytest.mark.parametrize(("model", "recompute"), GATHERED)
def test_layers_that_are_gathered_ahead_give_the_numbers_of_those_that_are_not(gathered, model, recompute):
    home, (ahead, on_demand) = gathered[0], gathered[1][model, recompute]
    assert (ahead["codes"], on_demand["codes"]) == ([0, 0], [0, 0])
    for one, other in zip(ahead["ranks"], on_demand["ranks"], strict=True):
        assert (one.pop("ahead"), other.pop("ahead")) == (True, False)
        assert one == other, "to the bit"
    for file in (home / ahead["name"]).glob("*.safetensors"):
        exact = load_file(home / on_demand["name"] / file.name)
        for name, tensor in load_file(file).items():
            assert torch.equal(tensor, exact[name]), name
