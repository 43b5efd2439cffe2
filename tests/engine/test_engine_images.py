"""Images in the embedded engine: each answer equals a whole pass of Hugging Face's own code over prompt and image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from areal.engine.commands import Continue, Load, Pause, StopThread
from areal.engine.request import BadRequest, GenerateRequest, Output, RequestLimits, parse_generate
from areal.engine.weights import read_tensors
from areal.image_shape import ImageShape
from areal.pixels import PixelReader
from areal.values.images import Image
from support.engine_server import EngineServer, logprobs
from support.served_module import Served
from support.tiny_vision import FAMILIES, asked, drawing, scored_alone, turn_experts, vision_model
from transformers import AutoModelForImageTextToText

pytestmark = pytest.mark.timeout(120)


def requested(served: Served, rid: str, prompt: Any, images: tuple[Image, ...], tokens: int) -> GenerateRequest:
    """As it comes over HTTP: a placeholder for each image, and their data URIs."""
    limits = RequestLimits(32, 512, text=False, images=served.model.image_shape)
    short = limits.images.collapsed(prompt, images).tolist()
    body = {
        "rid": rid, "input_ids": short, "return_logprob": True, "stream": True,
        "image_data": [image.uri for image in images],
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "sampling_seed": tokens},
    }  # fmt: skip
    (made,), _ = parse_generate(body, limits)
    assert made.input_ids.tolist() == prompt.tolist()
    return made


def whole(path: Path, output: Output) -> np.ndarray:
    """Log-probabilities of the output tokens by a whole pass."""
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    ids = np.concatenate([output.request.input_ids, output.output_ids])
    told = scored_alone(model, ids, PixelReader(path), output.request.images)
    return told[-len(output.output_ids) :].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_to_images_equal_whole_passes_through_a_swap(tmp_path, family):
    paths = [tmp_path / "0", tmp_path / "1"]
    for seed, path in enumerate(paths):
        vision_model(path, family, seed=seed)
    if family == "qwen3_vl_moe":
        turn_experts(paths[1])  # as transformers saves them; both layouts are read
    served, random = Served(paths[0]), np.random.default_rng(0)
    shape = served.model.image_shape
    one, two = (drawing(1, 42, 28),), (drawing(2), drawing(3, 14, 56))
    prompts = {"one": asked(shape, random, *one), "two": asked(shape, random, *two), "none": asked(shape, random)}
    images = {"one": one, "two": two, "none": ()}
    rids = [f"{name}-{place}" for name in prompts for place in range(2)]
    served.add(*(requested(served, rid, prompts[rid[:-2]], images[rid[:-2]], 9) for rid in rids))
    for output in served.ended(*rids):
        np.testing.assert_allclose(output.logprobs, whole(paths[0], output), rtol=0, atol=1e-4)
    other = requested(served, "greyed", prompts["one"], (drawing(9, 42, 28),), 9)
    served.add(other)
    (greyed,) = served.ended("greyed")
    assert np.abs(np.subtract(greyed.logprobs, served.last["one-0"].logprobs)).max() > 1e-3, "what is seen matters"
    served.add(
        requested(served, "swapped", prompts["two"], two, 40), requested(served, "beside", prompts["one"], one, 30)
    )
    served.until_made("swapped", 4)
    served.command(Pause("retract"))
    served.command(Load(served.model.build(paths[1], read_tensors(paths[1])), str(paths[1]), "1.f1", True, False))
    served.command(Continue())
    for output in served.ended("swapped", "beside"):
        swapped = output.spans[0][2]
        told = [whole(path, output) for path in paths]
        np.testing.assert_allclose(output.logprobs[:swapped], told[0][:swapped], rtol=0, atol=3e-4)
        np.testing.assert_allclose(output.logprobs[swapped:], told[1][swapped:], rtol=0, atol=3e-4)
    served.scheduler.post(StopThread())
    assert not served.failures


def test_what_is_no_image_or_has_no_place_is_refused(tmp_path):
    vision_model(tmp_path)
    served = Served(tmp_path)
    limits = RequestLimits(32, 512, text=False, images=served.model.image_shape)
    served.scheduler.post(StopThread())
    seen = drawing(1).uri
    for ids, data, why in [
        ([1, 27, 25, 28], [seen, seen], "1 placeholders for 2 images"),
        ([1, 2], seen, "0 placeholders for 1 images"),
        ([1, 25], "https://example.com/a.png", "nothing is fetched"),
        ([1, 25], "data:image/png;base64,AAAA", "3 bytes are no image"),
        ([1, 25], "data:image/png;base64,?", "no base64"),
        ([1, 25], 7, "an image is a int"),
    ]:
        with pytest.raises(BadRequest, match=why):
            parse_generate({"input_ids": ids, "image_data": data}, limits)
    with pytest.raises(BadRequest, match="reads no images"):
        parse_generate({"input_ids": [1, 25], "image_data": seen}, RequestLimits(32, 512))
    with pytest.raises(BadRequest, match="aren't computed"):
        parse_generate(
            {"input_ids": [1, 25], "image_data": seen, "return_logprob": True, "logprob_start_len": 0}, limits
        )


@pytest.mark.component
def test_a_server_takes_images_of_one_request_and_of_many(tmp_path):
    model = vision_model(tmp_path)
    server, reader = EngineServer("embedded", tmp_path), PixelReader(tmp_path)
    sampling = {"max_new_tokens": 6, "ignore_eos": True, "temperature": 0.7}
    seen = (drawing(1), drawing(2, 56, 28))
    try:
        server.start()
        many = server.generate([[3, 27, 25, 28, 4], [3, 4], [27, 25, 28]], sampling, image_data=[
            [seen[0].uri], None, [seen[1].uri]
        ])  # fmt: skip
        single = server.generate([3, 27, 25, 28, 4], sampling, image_data=[seen[0].uri])
    finally:
        server.stop()
    shape = ImageShape(25, 7, 2, 196, 10_000)
    for answer, ids, images in [
        (many[0], [3, 27, 25, 28, 4], seen[:1]), (many[1], [3, 4], ()), (many[2], [27, 25, 28], seen[1:]),
        (single, [3, 27, 25, 28, 4], seen[:1]),
    ]:  # fmt: skip
        prompt = shape.expanded(np.array(ids, np.int32), images)
        assert answer["meta_info"]["prompt_tokens"] == len(prompt)
        told = np.concatenate([prompt, answer["output_ids"]])
        scores = at_temperature(model, told, reader, images, 0.7)[-6:]
        np.testing.assert_allclose(logprobs(answer), scores, rtol=0, atol=1e-4)


def at_temperature(model: Any, ids: Any, reader: PixelReader, images: tuple[Image, ...], at: float) -> np.ndarray:
    """Log-probabilities of a distribution that was sampled at a temperature."""
    head = model.lm_head.weight
    with torch.no_grad():
        head.div_(at)
        told = scored_alone(model, ids, reader, images)
        head.mul_(at)
    return told.numpy()
