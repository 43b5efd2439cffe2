"""Images in the trainer: packed rows score and learn as each sequence alone does by Hugging Face's own code."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from areal.admit.models import read_model, refuse_weights
from areal.errors import DataError
from areal.pixels import PixelReader
from areal.values.policy import PolicyId
from areal.weights.publish import publish
from areal_trainer.data.batch import columns
from areal_trainer.data.micro_batches import bundles, rank_micro_batches
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.self_check import check_packing
from areal_trainer.publish.exporter import side_files, sources
from safetensors.torch import load_file
from support.forked_ranks import program
from support.publishing_ranks import CANARY
from support.tiny_vision import (
    FAMILIES,
    PLACEHOLDER,
    asked,
    drawing,
    sample,
    samples_of,
    scored_alone,
    shape_of,
    turn_experts,
    vision_model,
)
from transformers import AutoModelForImageTextToText

pytestmark = pytest.mark.component


@pytest.mark.parametrize("attention", ["dense", "varlen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_images_score_and_learn_as_alone(tmp_path, ranks, family, attention):
    model = vision_model(tmp_path, family)
    shape, reader = shape_of(tmp_path), PixelReader(tmp_path)
    tokens = columns(samples_of(shape), 32, shape)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=256,
        pack_length=96,
    )  # fmt: skip
    assert any(len(micro.images) > 1 for micro in micros)
    engine = PolicyEngine(tmp_path, ModelOptions(attention=attention), ranks)
    assert check_packing(engine, np.arange(40) % 20 + 1, None) is None
    packed = engine.logprobs(micros, tokens.tokens)
    engine.accumulate(micros, lambda values, entropy, micro: -values.sum() / 100)
    learned = {name: each.grad.full_tensor() for name, each in engine.trained().items()}
    assert not any(".visual." in name for name in learned), "the tower is frozen"
    for tensor in model.parameters():
        tensor.requires_grad_(False)
    language = {name: each.requires_grad_() for name, each in model.named_parameters() if ".visual." not in name}
    trainable, total = tokens.trainable(), torch.zeros(())
    for begin, end in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True):
        images = tokens.images_of(begin, end)
        with torch.enable_grad():
            ids = tokens.token_ids[begin:end]
            alone = alone_with_gradient(model, ids, reader, images)
            wanted = torch.from_numpy(trainable[begin + 1 : end])
            total = total - alone[wanted].sum() / 100
        torch.testing.assert_close(packed[begin + 1 : end][wanted], alone.detach()[wanted], atol=1e-4, rtol=0)
    total.backward()
    for name, each in language.items():
        apart = float((learned[f"lm.{name}"] - each.grad).abs().max())
        assert apart <= 1e-4 * (1 + float(each.grad.abs().max())), name
    greyed = tokens.images_of(0, int(tokens.offsets[1]))[0]
    ids = tokens.token_ids[: int(tokens.offsets[1])]
    other = scored_alone(model, ids, reader, (drawing(9),))
    assert greyed != drawing(9)
    assert float((other - scored_alone(model, ids, reader, (greyed,))).abs().max()) > 1e-2, "what is seen matters"


def alone_with_gradient(model, ids, reader, images):
    given = torch.from_numpy(ids)[None]
    more = {}
    if images:
        pixels, grids = reader.read(images)
        more = {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": (given == PLACEHOLDER).int()}
    model.model.rope_deltas = None
    logits = model(input_ids=given, use_cache=False, **more).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, given[0, 1:, None])[:, 0]


def test_alike_tokens_of_other_images_share_no_prompt(tmp_path):
    vision_model(tmp_path)
    shape = shape_of(tmp_path)
    tokens = columns(samples_of(shape), 32, shape)
    made = bundles(tokens, np.arange(tokens.sequences), 500)
    assert sorted(bundle.sequences for bundle in made) == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 11), (10, 12)]
    assert len(tokens.image_ends) == 4, "each file once"


def test_samples_whose_tokens_are_not_those_of_their_images_are_refused(tmp_path):
    vision_model(tmp_path)
    shape = shape_of(tmp_path)
    prompt = asked(shape, np.random.default_rng(0), drawing(1))
    one = sample(0, 0, prompt, (drawing(1, 56, 56),))
    with pytest.raises(DataError, match="has 4 placeholders, its 1 images take 16"):
        columns([one], 32, shape)
    with pytest.raises(DataError, match="the model reads none"):
        columns([one], 32)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_ranks_of_which_only_one_has_images_learn_as_one_rank_does(tmp_path, family):
    alone, together = (json.loads(line) for line in program("image_ranks", tmp_path, family))
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
    assert max(abs(number) for number in alone) > 0


def test_a_model_of_text_alone_does_not_score_images(tmp_path, model_path, ranks):
    vision_model(tmp_path)
    shape = shape_of(tmp_path)
    tokens = columns(samples_of(shape), 32, shape)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=256,
        pack_length=96,
    )  # fmt: skip
    with pytest.raises(DataError, match="reads no images, and samples have some"):
        PolicyEngine(model_path, ModelOptions(), ranks).logprobs(micros, tokens.tokens)


def test_experts_are_read_in_both_layouts_and_published_as_released(tmp_path, ranks):
    """Qwen3-VL-MoE's released files have experts turned; transformers saves them otherwise, and reads both."""
    released, saved = tmp_path / "released", tmp_path / "saved"
    model = vision_model(released, "qwen3_vl_moe")
    shutil.copytree(released, saved)
    turn_experts(saved)
    files = load_file(released / "model.safetensors")
    assert {each.shape for name, each in files.items() if ".mlp.experts." in name} == {(4, 64, 48), (4, 24, 64)}
    shape = shape_of(saved)
    tokens = columns(samples_of(shape), 32, shape)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=256,
        pack_length=96,
    )  # fmt: skip
    scores = []
    for place in (saved, released):
        engine = PolicyEngine(place, ModelOptions(), ranks)
        scores.append(engine.logprobs(micros, tokens.tokens))
        assert refuse_weights(read_model(place, weights=True)) == "", "as `areal check` looks at them"
        beside = side_files(place, place)
        made = publish(tmp_path / f"w-{place.name}", PolicyId(1, 1), sources(engine.export()), CANARY, beside)
        [file] = made.path.glob("*.safetensors")
        told = load_file(file)
        assert {name for name in files if ".visual." not in name} <= told.keys()
        assert all(torch.equal(each.float(), files[name]) for name, each in told.items())
        opened, about = AutoModelForImageTextToText.from_pretrained(made.path, output_loading_info=True)
        assert not about["mismatched_keys"]
        assert torch.equal(
            opened.model.language_model.layers[0].mlp.experts.down_proj,
            model.model.language_model.layers[0].mlp.experts.down_proj,
        )
    assert torch.equal(*scores)
