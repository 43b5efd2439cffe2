"""Families served through their Hugging Face module: each against whole passes of it, and over HTTP."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from areal.engine.commands import Continue, Load, Pause, StopThread
from areal.engine.request import GenerateRequest, Output, SamplingParams
from areal.engine.weights import read_tensors
from areal.errors import DataError
from areal.expert_routes import RouterMode, route_shape, rows_of
from areal.spec.model_families import route_bytes
from areal.weights.adapter import ADAPTER_CONFIG, base_checksums
from support.engine_models import hf_logprobs
from support.engine_server import EngineServer, logprobs
from support.module_models import FAMILIES, make_module_model
from support.served_module import Served
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.timeout(120)

F32 = torch.float32


@pytest.fixture(scope="module", params=sorted(FAMILIES), ids=str)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp(request.param)
    return make_module_model(root / "a", request.param, 0), make_module_model(root / "b", request.param, 1)


@pytest.fixture(scope="module")
def served(models: tuple[Path, Path]) -> Iterator[Served]:
    one = Served(models[0])
    yield one
    one.scheduler.post(StopThread())
    one.scheduler.join(60)
    assert not one.failures


def asked(rid: str, prompt: list[int], tokens: int, scored: int = -1, *, stream: bool = False) -> GenerateRequest:
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True, seed=len(prompt) + tokens, stream_interval=1)
    return GenerateRequest(rid, np.asarray(prompt), params, True, scored, stream, return_routes=True)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed + length).integers(3, 64, length)]


def apart(output: Output, model: Path) -> float:
    whole = hf_logprobs(model, output.request.input_ids.tolist(), output.output_ids)
    return float(np.abs(np.subtract(output.logprobs, whole)).max())


def whole_routes(path: Path, ids: list[int]) -> np.ndarray | None:
    """The experts that a whole pass chooses for each of these tokens; None of a family without."""
    lm = AutoModelForCausalLM.from_pretrained(path, dtype=F32).eval()
    shape = route_shape(lm)
    if shape is None:
        return None
    with torch.no_grad(), RouterMode(shape) as mode:
        lm(input_ids=torch.tensor([ids]), use_cache=False)
    return rows_of(shape, mode.chosen)


def assert_routed(output: Output, *parts: tuple[Path, int]) -> None:
    """Of each token but the last, by the model that made the one after it: each of these up to its end."""
    ids, begin = [*output.request.input_ids.tolist(), *output.output_ids], 0
    wholes = [(whole_routes(path, ids[:-1]), len(output.request.input_ids) - 1 + end) for path, end in parts]
    if wholes[0][0] is None:
        assert not output.routes
        return
    told = np.frombuffer(bytes(output.routes), np.uint8).reshape(-1, output.route_bytes)
    assert len(told) >= len(ids) - 1
    for whole, end in wholes:
        np.testing.assert_array_equal(told[begin:end], whole[begin:end])
        begin = end


def test_rows_that_join_and_leave_and_share_prompts_equal_whole_passes(served, models):
    first = [asked("long", prompt_of(23), 40, stream=True), asked("one", [7], 5), asked("short", prompt_of(4), 9)]
    served.add(*first)
    served.until_made("long", 3)
    siblings = [asked(f"sibling-{place}", prompt_of(19), 6 + 5 * place) for place in range(4)]
    later = [asked("again", prompt_of(23), 12), asked("other-one", [9], 8), asked("last", prompt_of(11), 30)]
    served.add(*siblings, *later)
    outputs = served.ended(*(each.rid for each in [*first, *siblings, *later]))
    assert max(apart(output, models[0]) for output in outputs) < 1e-4
    for output in outputs:
        assert_routed(output, (models[0], len(output.output_ids)))
    alone = asked("alone", prompt_of(19), 16)
    served.add(alone)
    (output,) = served.ended("alone")
    beside = next(each for each in outputs if each.request.rid == "sibling-2")
    assert output.output_ids == beside.output_ids
    np.testing.assert_allclose(output.logprobs, beside.logprobs, rtol=0, atol=1e-4)


def test_routes_are_told_to_who_wants_them_alone(served):
    wanted, other = asked("wanted", prompt_of(9), 6), replace(asked("other", prompt_of(9), 6), return_routes=False)
    served.add(wanted, other)
    told, untold = served.ended("wanted", "other")
    assert bool(told.routes) == (served.model._routing is not None)
    assert not untold.routes
    served.add(replace(asked("by-itself", prompt_of(5), 3), return_routes=False))
    (alone,) = served.ended("by-itself")
    assert not alone.routes
    assert served.model.routes is None


@pytest.mark.parametrize("field", ["output_router_logits", "topk_method"])
def test_a_choice_that_is_made_twice_or_masked_is_not_replayed_wrongly(tmp_path, field):
    """A loss asks routers once more; a router that zeroes scores outside of its groups has none for a forced expert."""
    path = make_module_model(tmp_path, "qwen3_moe", 0)
    config = json.loads((path / "config.json").read_text())
    changed = {"output_router_logits": True, "topk_method": "group_limited_greedy"}[field]
    (path / "config.json").write_text(json.dumps({**config, field: changed}))
    one = Served(path)
    one.add(asked("r", prompt_of(7), 5))
    (output,) = one.ended("r")
    one.scheduler.post(StopThread())
    assert apart(output, path) < 1e-4
    assert (len(output.routes) > 0) == (field == "output_router_logits")
    assert (route_bytes({**config, field: changed}) > 0) == (field == "output_router_logits")


def test_prompts_are_scored(served, models):
    prompts = {"a": prompt_of(21), "b": prompt_of(21, 9), "c": prompt_of(6)}
    served.add(*(asked(f"scored-{name}", ids, 0, 2) for name, ids in prompts.items()))
    for output, ids in zip(served.ended(*(f"scored-{name}" for name in prompts)), prompts.values(), strict=True):
        assert output.input_logprobs is not None
        np.testing.assert_allclose(output.input_logprobs, hf_logprobs(models[0], ids[:3], ids[3:]), rtol=0, atol=1e-4)


def test_new_weights_in_mid_answer_are_those_of_the_files(served, models):
    for place, (before, after) in enumerate([models, models[::-1]]):
        served.command(Continue())
        rids = [f"{place}-{name}" for name in ("stream", "beside", "sibling")]
        served.add(asked(rids[0], prompt_of(12), 60, stream=True), *(asked(rid, prompt_of(17), 50) for rid in rids[1:]))
        served.until_made(rids[0], 4)
        served.command(Pause("retract"))
        weights = served.model.build(after, read_tensors(after))
        assert served.model.checksums(weights) == base_checksums(after)
        served.command(Load(weights, str(after), f"{place + 1}.f1", True, False))
        served.command(Continue())
        for output in served.ended(*rids):
            (_, _, swapped), (version, start, end) = output.spans
            assert (version, start, end) == (f"{place + 1}.f1", swapped, len(output.output_ids))
            ids = output.request.input_ids.tolist()
            old = hf_logprobs(before, ids, output.output_ids[:swapped])
            new = hf_logprobs(after, ids + output.output_ids[:swapped], output.output_ids[swapped:])
            np.testing.assert_allclose(output.logprobs, old + new, rtol=0, atol=1e-4)
            assert abs(np.subtract(hf_logprobs(before, ids, output.output_ids)[swapped:], new)).max() > 0.1
            assert_routed(output, (before, swapped), (after, len(output.output_ids)))


def test_received_tensors_make_a_model_and_a_wrong_one_is_named(served, models):
    raw = read_tensors(models[1])
    assert served.model.checksums(served.model.build(models[1], raw)) == base_checksums(models[1])
    name = min(raw)
    with pytest.raises(DataError, match=f"has no tensor {name}"):
        served.model.build(models[1], {each: tensor for each, tensor in raw.items() if each != name})
    with pytest.raises(DataError, match=f"tensor {name} of .* this model needs"):
        served.model.build(models[1], raw | {name: raw[name][:1]})


def test_an_adapter_is_refused(served, models):
    with pytest.raises(DataError, match="served by its Hugging Face module alone"):
        served.model.adapted(served.scheduler.weights, models[0] / ADAPTER_CONFIG)


STOCK = [pytest.mark.sglang_real, pytest.mark.nightly, pytest.mark.timeout(400)]


@pytest.mark.component
@pytest.mark.parametrize(
    ("kind", "family"),
    [("embedded", "qwen3_5_text"), ("embedded", "qwen3_moe"), pytest.param("sglang", "qwen3_moe", marks=STOCK)],
)
def test_a_server_serves_swaps_and_says_its_checksums(tmp_path, kind, family):
    paths = [make_module_model(tmp_path / str(seed), family, seed) for seed in (0, 1)]
    server = EngineServer(kind, paths[0], "--weight-version", "0.f1")
    try:
        server.start()
        for version, path in enumerate(paths):
            if version:
                answer = server.post("/update_weights_from_disk", model_path=str(path), weight_version="1.f1")
                assert answer.json()["success"], answer.text
            prompts = [prompt_of(9), [5], prompt_of(9)]
            sampling = {"max_new_tokens": 12, "ignore_eos": True}
            answers = server.generate(prompts, sampling, return_routed_experts=kind == "embedded")
            for prompt, answer in zip(prompts, answers, strict=True):
                whole = hf_logprobs(path, prompt, answer["output_ids"])
                np.testing.assert_allclose(logprobs(answer), whole, rtol=0, atol=1e-4)
                routes = whole_routes(path, [*prompt, *answer["output_ids"]][:-1]) if kind == "embedded" else None
                told = answer["meta_info"].get("routed_experts")
                assert told is None if routes is None else b64decode(told) == routes.tobytes()
            if kind == "sglang":
                continue  # it fuses experts, and its checksums are of what it fused
            told = server.post("/weights_checker", action="checksum").json()["ranks"][0]["checksums"]
            assert told == base_checksums(path)
        if kind == "sglang":
            return
        other = make_module_model(tmp_path / "other", "lfm2", 0)
        refused = server.post("/update_weights_from_disk", model_path=str(other), weight_version="2.f1").json()
        assert not refused["success"]
        assert "another model" in refused["message"]
    finally:
        server.stop()
