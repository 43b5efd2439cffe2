"""Images through the agent beside stock SGLang on CPU: what it samples of them is what a whole pass says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from areal.pixels import PixelReader
from areal.spec.serving import SglangEngine
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.values.images import IMAGE, Image
from generation_parts import Answer, World, running_world, start_of
from support.tiny_vision import (
    PLACEHOLDER,
    asked,
    drawing,
    scored_alone,
    shape_of,
    turn_experts,
    vision_model,
    vision_words,
)
from transformers import AutoModelForImageTextToText

pytestmark = [
    pytest.mark.component,
    pytest.mark.sglang_real,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
VIDEO = PLACEHOLDER + 1
ROUNDING = 1e-3  # of two libraries' kernels in float32, with weights three times as large as a start's
ONE, OTHER, TWO = (drawing(1, 84, 56),), (drawing(9, 84, 56),), (drawing(2, 56, 56), drawing(3, 28, 112))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    root = tmp_path_factory.mktemp(request.param)
    models = [root / str(seed) for seed in range(2)]
    made = [vision_model(path, request.param, seed=seed, patch=14, vocab_size=64) for seed, path in enumerate(models)]
    made[1].model.visual.load_state_dict(made[0].model.visual.state_dict())  # a run leaves the tower as it is
    made[1].save_pretrained(models[1])
    if request.param == "qwen3_vl_moe":
        turn_experts(models[1])
    for path in models:
        vision_words(path, 64)
    engine = SglangEngine(type="sglang", max_running_requests=16)
    async with running_world(models, root / "weights", engine) as world:
        await world.controller.until("generation-0", lambda state: state.live, deadline_s=400)
        yield world


def seen(name: str, prompt: np.ndarray, images: tuple[Image, ...], tokens: int, **more: int) -> wire.GenerateStart:
    start = start_of(name, prompt.tolist(), tokens, **more)
    start.attachments.extend(common.Attachment(kind=IMAGE, data=image.data) for image in images)
    return start


def written(answer: Answer, *ends: int) -> list[int]:
    """The answer up to a placeholder of an image, or one of `ends`: these models write one seldom."""
    return next((answer.ids[:at] for at, made in enumerate(answer.ids) if made in (PLACEHOLDER, *ends)), answer.ids)


def apart(path: Path, prompt: np.ndarray, answer: Answer, images: tuple[Image, ...]) -> np.ndarray:
    """Distances of the tokens' log-probabilities from those of a whole pass by Hugging Face's own code."""
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    made = written(answer)
    told = scored_alone(model, np.concatenate([prompt, made]), PixelReader(path), images)[-len(made) :]
    return np.abs(told.numpy() - answer.logprobs[: len(made)])


async def test_answers_to_images_equal_whole_passes_and_see_them(seeing):
    await seeing.serve(0, 0)
    shape, random, path = shape_of(seeing.models[0]), np.random.default_rng(0), seeing.models[0]
    prompts = {images: asked(shape, random, *images) for images in (ONE, TWO, ())}
    prompts[OTHER] = prompts[ONE]
    for turn in range(2):  # the second finds prompts in SGLang's cache
        starts = [seen(f"{turn}-{place}", prompts[images], images, 24) for place, images in enumerate(prompts)]
        for (images, prompt), answer in zip(prompts.items(), await seeing.generate(*starts), strict=True):
            assert answer.reason == "LENGTH"
            assert apart(path, prompt, answer, images).max() <= ROUNDING
            if images == OTHER:
                assert apart(path, prompt, answer, ONE).max() > 0.1, "what is seen matters"


async def test_an_answer_goes_on_through_a_swap_and_elsewhere_with_its_images(seeing):
    await seeing.serve(1, 0)
    prompt = asked(shape_of(seeing.models[0]), np.random.default_rng(1), *TWO)
    await seeing.running(seen("long", prompt, TWO, 300))
    await seeing.publish(2, 1)
    (long,) = await seeing.client.ended("long")
    assert [policy for policy, _, _ in long.spans] == [seeing.policy(1), seeing.policy(2)]
    split = long.spans[0][2]
    old, new = (apart(path, prompt, long, TWO) for path in seeing.models)
    assert 0 < split < len(new)
    assert max(old[:split].max(), new[split:].max()) <= ROUNDING
    behind = np.concatenate([prompt, written(long, VIDEO)]).astype(np.int32)  # as a client goes on with another's
    (video,) = await seeing.generate(seen("video", np.append(behind, VIDEO), TWO, 4, floor=2))
    assert video.reason == "REFUSED", "SGLang would lose every answer of the batch"
    (resumed,) = await seeing.generate(seen("resumed", behind, TWO, 24, floor=2))
    assert apart(seeing.models[1], behind, resumed, TWO).max() <= ROUNDING
