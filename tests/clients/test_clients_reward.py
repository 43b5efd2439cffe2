"""The reward client: batches, retries, and faults that never become scores."""

from __future__ import annotations

import asyncio

import pytest
from areal.clients.reward import RewardClient
from areal.errors import BugError, DataError, InfraError
from areal.observe.waits import WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as wire
from support.scripted_agent import TOKEN
from support.scripted_reward import ScriptedReward, fault

pytestmark = pytest.mark.component


def item(tokens=2):
    return wire.ScoreItem(verifier="exact", completion_ids=b"\0" * 4 * tokens)


@pytest.fixture
async def service():
    service = await ScriptedReward().start()
    yield service
    await service.die()


@pytest.fixture
async def client(service):
    client = RewardClient([service.address], TOKEN, waits=WaitRegistry("w"), deadline_s=3.0, patience_s=60.0)
    yield client
    await client.close()


async def test_items_of_one_moment_travel_together(client, service):
    scores = await asyncio.gather(*(client.score(item(n)) for n in range(100)))
    assert [score.value for score in scores] == [float(n % 2 == 0) for n in range(100)]
    assert len(service.batches) == 2
    assert max(map(len, service.batches)) == 64
    assert service.batches[0][0].deadline_s == 3.0


async def test_a_verdict_comes_with_its_score(client, service):
    service.judge = lambda _: wire.ScoreResult(verdict=common.Verdict(score=0.25, status="partial"))
    score = await client.score(item())
    assert (score.value, score.verdict.status) == (0.25, "partial")


async def test_an_infra_fault_is_tried_again_and_never_a_zero(client, service):
    tries = []

    def judge(_):
        tries.append(1)
        return fault(common.FAULT_KIND_INFRA, "pool died") if len(tries) < 3 else wire.ScoreResult(score=1.0)

    service.judge = judge
    assert (await client.score(item())).value == 1.0
    assert len(tries) == 3


async def test_one_items_fault_leaves_its_neighbours_alone(client, service):
    service.judge = lambda scored: (
        fault(common.FAULT_KIND_DATA, "no answer column")
        if len(scored.completion_ids) == 12
        else wire.ScoreResult(score=1.0)
    )
    good, bad = await asyncio.gather(client.score(item(2)), client.score(item(3)), return_exceptions=True)
    assert good.value == 1.0
    assert isinstance(bad, DataError)
    assert bad.fix == "mend it"


async def test_a_restarted_service_scores_what_waited(client, service):
    await service.die()
    waiting = asyncio.create_task(client.score(item()))
    await asyncio.sleep(0)
    await service.start()
    assert (await asyncio.wait_for(waiting, 60)).value == 1.0


async def test_another_replica_takes_over(service):
    other = await ScriptedReward().start()
    client = RewardClient([service.address, other.address], TOKEN, waits=WaitRegistry("w"), patience_s=60.0)
    try:
        await service.die()
        scores = await asyncio.wait_for(asyncio.gather(*(client.score(item()) for _ in range(8))), 60)
        assert [score.value for score in scores] == [1.0] * 8
        assert other.batches
    finally:
        await client.close()
        await other.die()


async def test_patience_ends_in_an_infra_error(service):
    service.judge = lambda _: fault(common.FAULT_KIND_INFRA, "no slots")
    client = RewardClient([service.address], TOKEN, waits=WaitRegistry("w"), patience_s=0.3)
    try:
        with pytest.raises(InfraError, match="no slots"):
            await client.score(item())
    finally:
        await client.close()


@pytest.mark.parametrize("answer", [wire.ScoreResult(), wire.ScoreResult(score=float("nan"))])
async def test_an_answer_that_is_no_score_is_loud(client, service, answer):
    service.judge = lambda _: answer
    with pytest.raises(BugError):
        await client.score(item())


async def test_a_service_that_is_gone_is_waited_for_since_the_first_call_and_until_an_answer(service):
    waits = WaitRegistry("w")
    client = RewardClient([service.address], TOKEN, waits=waits, patience_s=60.0)
    try:
        await service.die()
        scoring = [asyncio.ensure_future(client.score(item())) for _ in range(3)]
        told = []
        for _ in range(1500):
            await asyncio.sleep(0.02)
            if (told := waits.list()) and told[0].age_s > 1.0:  # over several tries
                break
        assert [(wait.name, wait.waits_for) for wait in told] == [("reward.lost", f"{service.address} to score")]
        assert told[0].age_s > 1.0
        await service.start()
        async with asyncio.timeout(60):
            await asyncio.gather(*scoring)
        assert waits.list() == []
    finally:
        await client.close()


async def test_no_service_is_waited_for_when_all_gave_up(service):
    waits = WaitRegistry("w")
    client = RewardClient([service.address], TOKEN, waits=waits, patience_s=0.3)
    try:
        await service.die()
        with pytest.raises(InfraError):
            await asyncio.wait_for(client.score(item()), 30)
        await asyncio.sleep(0)
        assert waits.list() == []
    finally:
        await client.close()


async def test_a_service_that_judges_for_long_is_not_lost(service):
    waits = WaitRegistry("w")
    client = RewardClient([service.address], TOKEN, waits=waits, patience_s=60.0)
    try:
        service.gate = asyncio.Event()
        scoring = asyncio.ensure_future(client.score(item()))
        await asyncio.sleep(0.5)
        assert service.batches
        assert waits.list() == []
        service.gate.set()
        await asyncio.wait_for(scoring, 30)
    finally:
        await client.close()
