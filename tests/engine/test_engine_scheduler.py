"""The scheduler without HTTP: batching, reuse of rows, swaps, limits. All kinds of model against Hugging Face."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from areal.engine.commands import (
    KV_CACHE,
    WEIGHTS,
    Abort,
    Add,
    Continue,
    Load,
    Pause,
    Release,
    Resume,
    SetVersion,
    StopThread,
)
from areal.engine.model import DecoderModel
from areal.engine.model_config import ModelConfig
from areal.engine.request import GenerateRequest, Output, SamplingParams
from areal.engine.scheduler import DecodeScheduler, SchedulerLimits
from areal.engine.weights import Weights, build_weights, read_tensors
from areal.errors import DataError
from support.engine_models import hf_logprobs, make_model

F32 = torch.float32


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("scheduler-models")
    return make_model(root / "a", 0), make_model(root / "b", 1)


def load_weights(path: Path, config: ModelConfig, dtype: torch.dtype) -> Weights:
    return build_weights(path, read_tensors(path), config, dtype)


class Running:
    """A started scheduler whose outputs are collected."""

    def __init__(self, path: Path, **limits) -> None:
        config = ModelConfig.from_dir(path)
        self.config = config
        self.last: dict[str, Output] = {}
        self._changed = threading.Condition()
        self.failures: list[BaseException] = []
        self.scheduler = DecodeScheduler(
            DecoderModel(config, F32, config.context),
            load_weights(path, config, F32),
            version="0.f1",
            model_path=str(path),
            limits=SchedulerLimits(**({"max_running": 8} | limits)),
            deliver=self._deliver,
            on_failure=self.failures.append,
        )
        self.scheduler.start()

    def _deliver(self, outputs: list[Output]) -> None:
        with self._changed:
            self.last.update((output.request.rid, output) for output in outputs)
            self._changed.notify_all()

    def until(self, condition) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 30), self.failures

    def add(self, *requests: GenerateRequest) -> None:
        self.scheduler.post(Add(list(requests)))

    def finish(self, *requests: GenerateRequest) -> list[Output]:
        self.add(*requests)
        return self.ended(*(request.rid for request in requests))

    def ended(self, *rids: str) -> list[Output]:
        self.until(lambda: all(rid in self.last and self.last[rid].finish for rid in rids))
        return [self.last[rid] for rid in rids]

    def command(self, command) -> None:
        self.scheduler.post(command)
        assert command.done.result(20).success


@pytest.fixture
def run(models):
    started = []

    def start(path: Path = models[0], **limits) -> Running:
        started.append(Running(path, **limits))
        return started[-1]

    yield start
    for one in started:
        one.scheduler.post(StopThread())
        one.scheduler.join(60)
        assert not one.failures


def request(rid: str, prompt: list[int], tokens: int = 12, stream: bool = False, **sampling) -> GenerateRequest:
    params = SamplingParams(max_new_tokens=tokens, **({"ignore_eos": True, "seed": hash(rid) % 2**64} | sampling))
    return GenerateRequest(rid, np.asarray(prompt), params, True, -1, stream)


def exact(output: Output, model: Path) -> bool:
    expected = hf_logprobs(model, output.request.input_ids.tolist(), output.output_ids)
    return bool(np.allclose(output.logprobs, expected, atol=1e-5))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": False}),
        ("qwen3", {"head_dim": 32}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"attention_bias": True}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
    ],
)
def test_every_supported_architecture_equals_hugging_face(run, tmp_path, kind, changes):
    path = make_model(tmp_path / "model", 3, kind, **changes)
    outputs = run(path).finish(request("a", [5, 6, 7, 8, 9], 40), request("b", [4], 90))
    assert all(exact(output, path) for output in outputs)


@pytest.mark.parametrize("changes", [{"use_sliding_window": True}, {"hidden_act": "gelu"}])
def test_what_the_forward_pass_does_not_implement_is_refused(tmp_path, changes):
    path = make_model(tmp_path / "model", 3, "qwen3", **changes)
    with pytest.raises(DataError, match="does not implement"):
        ModelConfig.from_dir(path)


def test_mixed_lengths_in_reused_rows_do_not_contaminate_each_other(run, models):
    generator = np.random.default_rng(0)
    prompts = [generator.integers(3, 64, generator.integers(1, 40)).tolist() for _ in range(40)]
    requests = [request(str(number), prompt, 1 + number % 23) for number, prompt in enumerate(prompts)]
    outputs = run(max_running=8).finish(*requests)
    assert all(exact(output, models[0]) for output in outputs)
    assert [len(output.output_ids) for output in outputs] == [1 + number % 23 for number in range(40)]


def test_a_seed_makes_the_same_answer_in_any_company(run):
    one = request("one", [5, 6, 7], 30, seed=11)
    (alone,) = run().finish(one)
    company = [request(f"c{number}", [5, 6, 7] if number % 2 else [number + 3], 25) for number in range(12)]
    crowd = run(max_running=4).finish(*company[:6], request("one", [5, 6, 7], 30, seed=11), *company[6:])
    assert crowd[6].output_ids == alone.output_ids


def test_siblings_of_a_prompt_share_its_prefill_and_differ(run, models):
    siblings = [request(f"s{number}", list(range(3, 33)), 10, seed=number) for number in range(24)]
    outputs = run(max_running=8).finish(*siblings)
    assert all(exact(output, models[0]) for output in outputs)
    assert len({tuple(output.output_ids) for output in outputs}) > 12


def test_nothing_computed_with_old_weights_is_shared_after_a_swap(run, models):
    running = run()
    running.add(request("old", [9, 8, 7, 6], 400, stream=True))
    running.until(lambda: "old" in running.last)
    running.command(Pause("in_place"))
    weights = load_weights(models[1], running.config, F32)
    running.command(Load(weights, str(models[1]), "1.f1", flush_cache=False, abort_all=False))
    running.command(Continue())
    (fresh,) = running.finish(request("fresh", [9, 8, 7, 6], 10))
    assert fresh.spans == [("1.f1", 0, 10)]
    assert exact(fresh, models[1])
    (old,) = running.ended("old")
    assert [version for version, _, _ in old.spans] == ["0.f1", "1.f1"]


def test_weights_are_in_use_and_named_though_the_cache_could_not_be_flushed(run, models):
    running = run()
    running.add(request("held", [9, 8, 7, 6], 400, stream=True))
    running.until(lambda: "held" in running.last)
    running.command(Pause("in_place"))
    load = Load(load_weights(models[1], running.config, F32), str(models[1]), "1.f1", True, False)
    running.scheduler.post(load)
    answer = load.done.result(60)
    assert (answer.success, "not flushed" in answer.message) == (False, True)
    stats = running.scheduler.stats
    assert (stats.weight_version, stats.model_path) == ("1.f1", str(models[1]))
    running.command(Continue())
    (fresh,) = running.finish(request("fresh", [9, 8, 7, 6], 10))
    assert exact(fresh, models[1])


def test_an_unpaused_load_waits_for_those_before_it_and_goes_before_those_after_it(run, models):
    running = run()
    running.add(request("before", [5, 6], 300))
    load = Load(load_weights(models[1], running.config, F32), str(models[1]), "1.f1", True, False)
    running.scheduler.post(load)
    running.add(request("after", [5, 6], 5))
    before, after = running.ended("before", "after")
    assert load.done.result(60).success
    assert before.spans == [("0.f1", 0, 300)]
    assert after.spans == [("1.f1", 0, 5)]


def test_an_abort_during_a_pause_is_answered_during_the_pause(run):
    running = run()
    running.add(request("run", [5, 6], 400, stream=True))
    running.until(lambda: "run" in running.last)
    running.command(Pause("retract"))
    running.add(request("late", [7], 5))
    running.scheduler.post(Abort(("run",)))
    running.scheduler.post(Abort(("late",)))
    run_output, late = running.ended("run", "late")
    assert run_output.finish["type"] == late.finish["type"] == "abort"
    assert run_output.output_ids
    assert late.output_ids == []


def refused(running, command) -> str:
    running.scheduler.post(command)
    answer = command.done.result(20)
    assert not answer.success
    return answer.message


def test_memory_is_given_back_and_taken_only_in_an_order_that_can_work(run, models):
    running = run()
    everything = frozenset({WEIGHTS, KV_CACHE})
    running.add(request("r", [5, 6], 400, stream=True))
    running.until(lambda: "r" in running.last)
    assert "pause" in refused(running, Release(everything))
    running.command(Pause("retract"))
    assert "isn't released" in refused(running, Resume(frozenset({KV_CACHE})))
    running.command(Release(everything))
    running.command(Release(everything))
    with pytest.raises(DataError, match="released"):
        _ = running.scheduler.weights
    assert "kv_cache, weights must" in refused(running, Continue())
    weights = load_weights(models[1], running.config, F32)
    load = Load(weights, str(models[1]), "1.f1", flush_cache=True, abort_all=False)
    assert "released" in refused(running, load)
    running.command(Resume(frozenset({WEIGHTS})))
    running.command(Load(weights, str(models[1]), "1.f1", flush_cache=True, abort_all=False))
    assert "kv_cache must" in refused(running, Continue())
    running.command(Resume(frozenset({KV_CACHE})))
    running.command(Continue())
    running.scheduler.post(Abort(("r",)))
    (ended,) = running.ended("r")
    assert ended.spans[0][0] == "0.f1"
    assert not running.failures


def test_repeated_interruptions_lose_and_repeat_nothing(run, models):
    running = run()
    running.add(*(request(f"r{number}", [number + 3, 9], 200, stream=True) for number in range(12)))
    for round_ in range(5):
        running.until(
            lambda round_=round_: len(running.last.get("r0", Output(None, [], [], [], "")).output_ids) > 10 * round_
        )
        running.command(Pause("retract"))
        running.command(Continue())
    outputs = running.ended(*(f"r{number}" for number in range(12)))
    assert all(len(output.output_ids) == 200 and exact(output, models[0]) for output in outputs)
    assert max(output.retractions for output in outputs) >= 1


def test_a_small_cache_runs_fewer_at_once_but_all(run, models):
    running = run(max_running=8, max_total_tokens=128)
    outputs = running.finish(*(request(str(number), [number + 3], 40) for number in range(10)))
    assert all(exact(output, models[0]) for output in outputs)
    assert running.scheduler.stats.steps >= 5 * 40


def test_a_long_prompt_beyond_the_prefill_budget_is_still_served(run, models):
    (output,) = run(max_prefill_tokens=16).finish(request("long", [3 + n % 60 for n in range(300)], 5))
    assert exact(output, models[0])


def test_prompt_logprobs_come_with_generation_too(run, models):
    asked = request("scored", [5, 6, 7, 8], 3)
    asked.logprob_start_len = 0
    (output,) = run().finish(asked)
    assert np.allclose(output.input_logprobs, hf_logprobs(models[0], [5], [6, 7, 8]), atol=1e-5)
    assert len(output.output_ids) == 3


def test_weights_that_are_not_numbers_end_requests_instead_of_sampling_rubbish(run, models):
    running = run()
    weights = load_weights(models[0], running.config, F32)
    weights.final_norm.fill_(float("nan"))
    running.command(Load(weights, "x", "9.f1", True, False))
    (output,) = running.finish(request("nan", [5, 6], 5))
    assert output.finish["type"] == "abort"
    assert "not finite" in output.finish["message"]
    assert output.output_ids == []


def test_min_new_tokens_keeps_stop_tokens_away(run):
    outputs = run().finish(
        *(request(str(n), [5], 30, temperature=5.0, ignore_eos=False, min_new_tokens=10, seed=n) for n in range(30))
    )
    assert all(len(output.output_ids) >= 10 for output in outputs)
    assert any(output.finish["type"] == "stop" for output in outputs)


def test_a_missing_or_misshapen_tensor_is_named(models, tmp_path):
    from safetensors.torch import load_file, save_file

    config = ModelConfig.from_dir(models[0])
    tensors = load_file(models[0] / "model.safetensors")
    for change, word in (
        (lambda kept: kept.pop("model.layers.1.self_attn.k_proj.weight"), "layers.1.self_attn.k_proj"),
        (lambda kept: kept.update({"model.norm.weight": torch.zeros(3)}), "model.norm.weight"),
    ):
        kept = dict(tensors)
        change(kept)
        save_file(kept, tmp_path / "model.safetensors")
        with pytest.raises(DataError, match=word):
            load_weights(tmp_path, config, F32)


def test_who_has_an_answer_finds_its_effect_in_the_picture(run, models):
    running = run()
    seen: list[tuple[str, str, bool]] = []

    def look(_: object) -> None:  # in the scheduler's thread, at the moment of the answer
        stats = running.scheduler.stats
        seen.append((stats.weight_version, stats.model_path, stats.paused))

    weights = load_weights(models[1], running.config, F32)
    commands = [
        Load(weights, str(models[1]), "1.f1", True, False),
        Pause("retract"),
        SetVersion("2.f1", False),
        Continue(),
    ]
    for command in commands:
        command.done.add_done_callback(look)
        running.command(command)
    new = str(models[1])
    assert seen == [("1.f1", new, False), ("1.f1", new, True), ("2.f1", new, True), ("2.f1", new, False)]
