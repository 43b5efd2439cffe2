"""The runner of episodes: what is left of them when they have ended."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest
from areal.clients.generation import GenerationClient
from areal.clients.generation.accumulate import Accumulator
from areal.clients.generation.client import ActiveGeneration, Ask
from areal.errors import InfraError
from areal.gateway.session import SessionLimits
from areal.observe.waits import WaitRegistry
from areal.rollout.contract.values import BLIND, FailureKind
from areal.rollout.worker.episode_engine import EpisodeEngine
from areal.rollout.worker.episode_run import EpisodeRun, EpisodeSettings
from areal.rollout.worker.runner import EpisodeResult, EpisodeRunner, Key, _Slot
from areal.rollout.worker.sessions import Sessions
from areal.rollout.worker.user_loop import OwnedTask
from areal.values.generation import GenerationRequest, Sampling
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.episode import Episode
from areal.workflow.tokenizer import Tokenizer
from support.tiny_vision import drawing

OF_AN_EPISODE = (_Slot, EpisodeRun, EpisodeEngine, ActiveGeneration, Accumulator, OwnedTask)


class AsksTwice(RolloutWorkflow):
    """Generates in a task of its own, then directly; rejects the sample."""

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        request = GenerationRequest([1, 2, 3])
        await asyncio.create_task(engine.agenerate(request))
        await engine.agenerate(request)
        return None


def _alive() -> dict[str, int]:
    gc.collect()
    counts = Counter(type(each) for each in gc.get_objects())
    return {kind.__name__: counts[kind] for kind in OF_AN_EPISODE}


async def test_an_episode_that_ended_leaves_no_objects(worker_tokenizer: Tokenizer) -> None:
    ended: asyncio.Queue[EpisodeResult] = asyncio.Queue()
    settings = EpisodeSettings(
        seed=0, sampling=Sampling(max_new_tokens=0), max_sample_tokens=8, chat_template=None, verifier=""
    )
    client = GenerationClient("", owner="w", vocab_size=64, eos_ids=frozenset(), waits=WaitRegistry("w"))
    released: list[str] = []
    client.release = released.append  # type: ignore[method-assign]
    runner = EpisodeRunner(
        client,
        None,
        worker_tokenizer,
        settings,
        AsksTwice,
        lambda _key, end: ended.put_nowait(end),
        stall_s=60.0,
        sessions=Sessions(worker_tokenizer, SessionLimits(1, 8, 1)),
    )
    before = _alive()
    for group in range(100):
        for index in range(2):
            runner.start(Key(group, index), b'{"prompt": "a"}', floor=0)
    for _ in range(200):
        assert (await ended.get()).kind is FailureKind.REJECTED
    assert sorted(released) == sorted(str(group) for group in range(100)), "each group's server is forgotten once"
    runner.close()  # its loop turns no more; the runner itself is held here
    for _ in range(1000):  # the last episode's task ends after it told its result
        if _alive() == before:
            break
        await asyncio.sleep(0.01)
    assert _alive() == before
    await client.close()


class Looks(RolloutWorkflow):
    """Asks with an image once."""

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        await engine.agenerate(GenerationRequest([1, 2, 3], images=(drawing(3, 14, 21),)))
        return None


@pytest.mark.parametrize("index", [0, 1, BLIND])
async def test_a_blind_answer_of_an_evaluation_is_greedy_and_asks_with_a_grey_image_of_the_same_size(
    index: int, worker_tokenizer: Tokenizer
) -> None:
    asked: list[Ask] = []
    ended: asyncio.Queue[EpisodeResult] = asyncio.Queue()

    def refused(ask: Ask, *_: object) -> ActiveGeneration:
        asked.append(ask)
        raise InfraError("nobody serves")

    client = GenerationClient("", owner="w", vocab_size=64, eos_ids=frozenset(), waits=WaitRegistry("w"))
    client.open = refused  # type: ignore[method-assign, assignment]
    settings = EpisodeSettings(
        seed=0, sampling=Sampling(max_new_tokens=4), max_sample_tokens=8, chat_template=None, verifier=""
    )
    runner = EpisodeRunner(
        client,
        None,
        worker_tokenizer,
        settings,
        Looks,
        lambda _key, end: ended.put_nowait(end),
        stall_s=60.0,
        sessions=Sessions(worker_tokenizer, SessionLimits(1, 8, 1)),
    )
    runner.start(Key(3, index, "0.f1"), b'{"prompt": "a"}', floor=0)
    assert (await ended.get()).kind is FailureKind.INFRA
    runner.close()
    await client.close()
    (ask,) = asked
    (image,) = ask.images
    assert image.size == (14, 21)
    assert (image == drawing(3, 14, 21)) == (index != BLIND)
    assert (ask.seed is None) == (index in (0, BLIND))
