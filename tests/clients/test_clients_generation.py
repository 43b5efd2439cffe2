"""The routing client against real gRPC servers that a test interrupts, kills and swaps."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from areal.clients.generation import Ask, GenerationClient
from areal.errors import DataError, InfraError
from areal.observe.waits import WaitRegistry
from areal.v1 import generation_pb2 as wire
from areal.values.generation import Sampling, as_ids
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_agent import EOS, TOKEN, VOCABULARY, ScriptedAgent, answer

pytestmark = pytest.mark.component


def ask(seed=7, floor=0, limit=40, affinity="3", **fields):
    return Ask(
        prompt_ids=as_ids([5, 6, 7]),
        sampling=Sampling(max_new_tokens=limit),
        affinity=affinity,
        floor=floor,
        seed=seed,
        **fields,
    )


def check(result, seed=7, limit=40):
    ids, logprobs, reason = answer(seed, 3, limit)
    assert result.output_ids.tolist() == ids
    assert result.logprobs.tolist() == logprobs
    assert result.finish_reason == reason
    assert (result.versions >= 0).all()


LONG = next(seed for seed in range(1000) if len(answer(seed, 3, 40)[0]) >= 20)


def make_client(waits=None, **fields):
    return GenerationClient(
        TOKEN, owner="w", vocab_size=VOCABULARY, eos_ids=frozenset({EOS}), waits=waits or WaitRegistry("w"), **fields
    )


@pytest.fixture
async def waits():
    return WaitRegistry("w")


@pytest.fixture
async def client(waits):
    client = make_client(waits)
    yield client
    await client.close()


@pytest.fixture
async def agents():
    made = []

    async def start(*names, **fields):
        started = [await ScriptedAgent(server_id=name, **fields).start() for name in names]
        made.extend(started)
        return started

    yield start
    for agent in made:
        await agent.die()


async def until(ready):
    async with asyncio.timeout(60):
        while not ready():  # noqa: ASYNC110  what is watched has no event
            await asyncio.sleep(0.005)


async def test_many_requests_share_one_stream_and_few_messages(client, agents):
    (agent,) = await agents("a")
    client.update_fleet([agent.state()])
    results = await asyncio.gather(*(client.generate(ask(seed=s, affinity=str(s // 8))) for s in range(128)))
    for seed, result in enumerate(results):
        check(result, seed)
    assert len(agent.starts) == 128
    assert agent.messages <= 4


async def test_an_interruption_changes_no_token(client, agents):
    (agent,) = await agents("a", by_itself=False)
    client.update_fleet([agent.state()])
    task = asyncio.create_task(client.generate(ask(LONG)))
    for version in range(3):
        await agent.until_running(1)
        agent.step(3)
        agent.end_all(wire.END_REASON_ABORTED)
        agent.policy_id = f"{version + 1}.f1"
    await agent.until_running(1)
    agent.by_itself = True
    agent.step(40)
    result = await task
    check(result, LONG)
    assert [span.policy_id for span in result.spans] == ["0.f1", "1.f1", "2.f1", "3.f1"]
    assert [len(start.token_ids) // 4 for start in agent.starts] == [3, 6, 9, 12]
    assert [start.sampling.max_new_tokens for start in agent.starts] == [40, 37, 34, 31]
    assert len({start.request_id for start in agent.starts}) == 4


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=6))
def test_any_interruptions_on_two_servers_give_the_uninterrupted_answer(seed, cuts):
    reasons = [
        wire.END_REASON_ABORTED,
        wire.END_REASON_BELOW_FLOOR,
        wire.END_REASON_DRAINING,
        wire.END_REASON_ENGINE_LOST,
    ]

    async def scenario():
        client = make_client()
        pair = [await ScriptedAgent(server_id=name, by_itself=False).start() for name in "ab"]
        try:
            client.update_fleet([agent.state() for agent in pair])
            task = asyncio.create_task(client.generate(ask(seed)))
            for version, (tokens, why) in enumerate(cuts):
                await until(lambda: task.done() or any(agent.running for agent in pair))
                for agent in pair:
                    agent.step(tokens)
                    agent.end_all(reasons[why])
                    agent.policy_id = f"{version + 1}.f1"
                client.update_fleet([agent.state() for agent in pair])
            await until(lambda: task.done() or any(agent.running for agent in pair))
            for agent in pair:
                agent.by_itself = True
                agent.step(40)
            result = await asyncio.wait_for(task, 60)
            check(result, seed)
            assert {span.server_id for span in result.spans} <= {"a", "b"}
            assert sum(len(agent.starts) for agent in pair) >= len(result.spans)
        finally:
            await client.close()
            for agent in pair:
                await agent.die()

    asyncio.run(scenario())


async def test_a_servers_death_in_the_middle_of_a_sample_loses_nothing(client, agents):
    first, second = await agents("a", "b", by_itself=False)
    client.update_fleet([first.state(), second.state()])
    task = asyncio.create_task(client.generate(ask(LONG)))
    await until(lambda: first.running or second.running)
    dying, other = (first, second) if first.running else (second, first)
    dying.step(5)
    await until(lambda: client.tokens_total == 5)
    await dying.die()
    await other.until_running(1)
    other.step(40)
    result = await task
    check(result, LONG)
    assert {span.server_id for span in result.spans} == {"a", "b"}


@pytest.mark.parametrize("evens", [True, False])
async def test_half_of_a_synchronous_loops_requests_move_to_an_empty_server_and_keep_their_tokens(evens, agents):
    client = make_client(evens=evens)
    full, empty = await agents("a", "b", by_itself=False)
    seeds = [seed for seed in range(1000) if len(answer(seed, 3, 40)[0]) >= 30][:10]
    try:
        client.update_fleet([full.state()])
        tasks = [asyncio.create_task(client.generate(ask(seed, affinity=str(seed)))) for seed in seeds[:5]]
        await full.until_running(5)
        full.step(7)
        tasks += [asyncio.create_task(client.generate(ask(seed, affinity=str(seed)))) for seed in seeds[5:]]
        await full.until_running(10)
        full.step(2)
        client.update_fleet([full.state(running=10), empty.state()])
        if evens:
            await empty.until_running(5)
            assert sorted(start.sampling.seed for start in empty.starts) == seeds[5:]  # those with the fewest tokens
            assert {len(start.token_ids) // 4 for start in empty.starts} == {3 + 2}
        await asyncio.sleep(2.5)
        assert (len(full.running), len(empty.running)) == ((5, 5) if evens else (10, 0))
        assert len(full.cancels) == len(empty.running)
        for agent in (full, empty):
            agent.by_itself = True
            agent.step(40)
        for seed, result in zip(seeds, await asyncio.gather(*tasks), strict=True):
            check(result, seed)
            moved = evens and seed in seeds[5:]
            assert [span.server_id for span in result.spans] == (["a", "b"] if moved else ["a"])
    finally:
        await client.close()


async def test_answers_with_routes_stay_where_they_are(agents):
    client = make_client(evens=True, routes=True)
    full, empty = await agents("a", "b", by_itself=False)
    try:
        client.update_fleet([full.state()])
        tasks = [asyncio.create_task(client.generate(ask(LONG, affinity=str(k)))) for k in range(10)]
        await full.until_running(10)
        client.update_fleet([full.state(running=10), empty.state()])
        await asyncio.sleep(2.5)
        assert (len(full.running), full.cancels) == (10, [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await client.close()


async def test_a_restarted_server_gets_its_requests_back(client, agents):
    (agent,) = await agents("a", by_itself=False)
    client.update_fleet([agent.state()])
    task = asyncio.create_task(client.generate(ask(LONG)))
    await agent.until_running(1)
    agent.step(5)
    await until(lambda: client.tokens_total == 5)
    await agent.die()
    agent.by_itself = True
    await agent.start()
    result = await asyncio.wait_for(task, 60)
    check(result, LONG)
    assert {span.server_id for span in result.spans} == {"a"}
    assert [len(start.token_ids) // 4 for start in agent.starts] == [3, 8]  # the second goes on after five tokens
    assert client.reprefilled_total == 8


async def test_a_dead_servers_requests_move_when_the_controller_says_so(client, agents):
    hung, other = await agents("a", "b", by_itself=False)
    client.update_fleet([hung.state()])
    task = asyncio.create_task(client.generate(ask(LONG)))
    await hung.until_running(1)
    other.by_itself = True
    client.update_fleet([hung.state(live=False), other.state()])
    result = await asyncio.wait_for(task, 60)
    check(result, LONG)
    assert {span.server_id for span in result.spans} == {"b"}


async def test_a_request_waits_by_name_for_a_version_and_starts_with_it(client, agents, waits):
    (agent,) = await agents("a")
    client.update_fleet([agent.state()])
    task = asyncio.create_task(client.generate(ask(floor=2)))
    await until(lambda: [wait.waits_for for wait in waits.list()] == ["version ≥ 2 on a server"])
    assert not client.can_serve(2)
    agent.policy_id = "2.f1"
    client.update_fleet([agent.state()])
    check(await task)
    assert agent.starts[0].floor == 2
    assert waits.list() == []


async def test_a_server_older_than_reported_is_left_until_it_reports_again(client, agents):
    old, new = await agents("a", "b")
    old.policy_id = "0.f1"
    client.update_fleet([old.state(version=2)])  # reported before its engine restarted
    task = asyncio.create_task(client.generate(ask(floor=2)))
    await until(lambda: old.starts)
    new.policy_id = "2.f1"
    client.update_fleet([old.state(version=2), new.state()])
    result = await asyncio.wait_for(task, 60)
    check(result)
    assert {span.server_id for span in result.spans} == {"b"}
    assert len(old.starts) == 1


async def test_cancelling_the_caller_cancels_at_the_server(client, agents):
    (agent,) = await agents("a", by_itself=False)
    client.update_fleet([agent.state()])
    task = asyncio.create_task(client.generate(ask()))
    await agent.until_running(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: agent.cancels)
    assert agent.cancels == [agent.starts[0].request_id]
    assert client.servers()[0].load == 0


async def test_a_deadline_is_an_infra_error(client, agents):
    (agent,) = await agents("a", by_itself=False)
    client.update_fleet([agent.state()])
    with pytest.raises(InfraError, match="no answer within"):
        await client.generate(ask(), deadline_s=0.2)


async def test_a_refusal_keeps_its_kind_and_fix(client, agents):
    (agent,) = await agents("a", refuses=True)
    client.update_fleet([agent.state()])
    with pytest.raises(DataError, match="ask for something else"):
        await client.generate(ask())


@pytest.mark.parametrize("ids", [[], [5, VOCABULARY], [-1]])
async def test_ids_the_model_does_not_have_never_reach_a_server(client, agents, ids):
    (agent,) = await agents("a")
    client.update_fleet([agent.state()])
    with pytest.raises(DataError):
        await client.generate(Ask(as_ids(np.array(ids)), Sampling(), "1", 0))
    assert agent.starts == []


async def test_a_group_stays_on_its_server_and_groups_spread(client, agents):
    pair = await agents("a", "b", by_itself=False)
    client.update_fleet([agent.state() for agent in pair])
    await until(lambda: all(server.connected for server in client.servers()))
    asks = [ask(LONG, limit=40 + g, affinity=str(g)) for g in range(4) for _ in range(4)]  # a limit tells its group
    tasks = [asyncio.create_task(client.generate(one)) for one in asks]
    await until(lambda: sum(len(agent.running) for agent in pair) == 16)
    for agent in pair:
        assert 4 <= len(agent.running) <= 12
    homes = [{start.sampling.max_new_tokens for start in agent.starts} for agent in pair]
    assert not homes[0] & homes[1]
    for agent in pair:
        agent.step(44)
    await asyncio.gather(*tasks)


async def test_an_empty_fleet_leaves_running_requests_alone(client, agents):
    (agent,) = await agents("a", by_itself=False)
    client.update_fleet([agent.state()])
    task = asyncio.create_task(client.generate(ask(LONG)))
    await agent.until_running(1)
    client.update_fleet([])  # a controller that just restarted
    agent.step(40)
    check(await task, LONG)
    assert len(agent.starts) == 1


async def test_every_request_names_the_models_ends_unless_they_are_ignored(client, agents):
    (agent,) = await agents("a")
    client.update_fleet([agent.state()])
    for ignored in (False, True):
        sampling = Sampling(max_new_tokens=4, stop_token_ids=(7,), ignore_eos=ignored)
        await client.generate(Ask(prompt_ids=as_ids([5, 6, 7]), sampling=sampling, affinity="3", floor=0, seed=7))
    assert [list(start.sampling.stop_token_ids) for start in agent.starts] == [sorted({7, EOS}), [7]]


async def test_servers_that_cannot_be_reached_are_waited_for_until_one_is(client, agents, waits):
    def lost():
        return [wait.name for wait in waits.list() if wait.name.endswith(".lost")]

    first, second = await agents("a", "b")
    client.update_fleet([first.state(), second.state()])
    await client.generate(ask())
    await first.die()
    check(await client.generate(ask()))
    assert lost() == [], "one is enough"
    await second.die()
    await until(lost)
    client.update_fleet([first.state(), second.state()])
    assert lost() == ["generation.lost"]
    await second.start()
    await until(lambda: not lost())
