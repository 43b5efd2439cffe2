"""A whole worker: leases in, samples in the ledger and reports out, while its world fails."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import xxhash
from areal.errors import InfraError
from areal.rollout.controller.streak import headline
from areal.rollout.worker.episode_run import sample_seed
from areal.rollout.worker.worker import ACTIONS_AT_ONCE
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.workflow import Episode, GenerationRequest, RLVRWorkflow, RolloutWorkflow, Sequence
from support.redis_server import RedisServer
from support.scripted_agent import ScriptedAgent, answer
from support.scripted_controller import lease
from support.scripted_reward import fault
from support.worker_parts import LIMIT, ROW, SEED

pytestmark = pytest.mark.component
PROMPT = 4  # tokens of the row's prompt


def check(sample, group, index):
    """The stored sample is what the scripted engine makes of its seed."""
    ids, logprobs, reason = answer(sample_seed(SEED, group, index, 0), PROMPT, LIMIT)
    (sequence,) = sample.sequences
    assert np.frombuffer(sequence.token_ids, "<i4").tolist()[PROMPT:] == ids
    assert np.frombuffer(sequence.logprobs, "<f4").tolist()[PROMPT:] == logprobs
    assert np.frombuffer(sequence.loss_mask, "u1").tolist() == [0] * PROMPT + [1] * len(ids)
    assert sequence.finish_reason == reason
    assert sequence.reward == float(len(ids) % 2 == 0)
    covered = [t for span in sequence.spans for t in range(span.start, span.end)]
    assert covered == list(range(PROMPT, PROMPT + len(ids)))


async def test_a_lease_becomes_samples_in_the_ledger_then_done(bench):
    work = await bench().start()
    work.controller.send(leases=[lease(g, [0, 1, 2, 3], ROW) for g in range(4)])
    await work.controller.until(lambda: len(work.controller.done) == 16)
    stored = await work.stored()
    assert len(stored) == 16
    for (group, index), sample in stored.items():
        check(sample, group, index)
        assert sample.max_staleness == 2
        assert sample.worker_id == "worker-0"
    for done in work.controller.done:
        sample = stored[done.key.group, done.key.index]
        assert done.reward == sample.sequences[0].reward
        assert (done.oldest_version, done.newest_version) == (0, 0)
    assert len(work.agents[0].starts) == 16
    assert max(len(batch) for batch in work.reward.batches) > 1


async def test_every_sample_is_recorded_as_it_is_stored(bench):
    work = await bench().start()
    work.controller.send(leases=[lease(g, [0, 1], ROW) for g in range(3)])
    await work.controller.until(lambda: len(work.controller.done) == 6)
    stored = await work.stored()
    await work.end()
    found = work.recorded()
    assert {(one.sample.key.group, one.sample.key.index): one.sample for one in found} == stored
    for one in found:
        sequence, text = one.sample.sequences[0], one.texts[0]
        assert text.text.startswith(b"321=")
        assert np.frombuffer(text.token_ends, "<u4")[-1] == len(text.text)
        assert len(text.token_ends) == len(sequence.token_ids)
        assert one.xxh3 == xxhash.xxh3_64_intdigest(one.sample.SerializeToString(deterministic=True))
        assert one.reward == sequence.reward
        assert [moment.what for moment in one.moments] == ["generate", "score"]
        assert one.expected == "123"


async def test_routes_go_with_a_sample_into_the_ledger_and_not_into_its_record(bench):
    agent = ScriptedAgent(by_itself=False)
    work = await bench(routes=True).start(agent)
    work.controller.send(leases=[lease(0, [0], ROW)])
    await agent.until_running(1)
    agent.step(2)
    agent.policy_id = "1.f1"
    agent.end_all(generation.END_REASON_ABORTED)  # as a swap does: what was sampled is computed anew
    await agent.until_running(1)
    while not work.controller.done:
        agent.step(1)
        await asyncio.sleep(0.01)
    (sample,) = (await work.stored()).values()
    await work.end()
    (sequence,) = sample.sequences
    (attachment,) = sequence.attachments
    rows = np.frombuffer(attachment.data, "u1").reshape(-1, 2).tolist()
    tokens = len(sequence.token_ids) // 4
    swapped = PROMPT - 1 + 2
    assert rows == [[0, at] for at in range(swapped)] + [[1, at] for at in range(swapped, tokens - 1)] + [[255, 255]]
    (one,) = work.recorded()
    assert one.sample.sequences[0].token_ids == sequence.token_ids
    assert not one.sample.sequences[0].attachments


async def test_a_failure_is_recorded_with_its_reason(bench):
    class Broken(RolloutWorkflow):
        async def arun_episode(self, engine, row):
            raise ValueError("this recipe is broken")

    work = await bench(workflow=Broken).start()
    work.controller.send(leases=[lease(0, [0], ROW)])
    await work.controller.until(lambda: work.controller.failures)
    await work.end()
    (found,) = work.recorded()
    assert (found.outcome, found.xxh3) == ("exception", 0)
    assert "this recipe is broken" in found.fault.message
    assert found.expected == "123"


async def test_swaps_and_a_servers_death_change_no_sample(bench):
    work = await bench().start(ScriptedAgent("a", by_itself=False), ScriptedAgent("b", by_itself=False))
    first, second = work.agents
    work.controller.send(leases=[lease(g, [0, 1, 2, 3], ROW) for g in range(4)])
    await first.until_running(1)
    first.step(2)
    second.step(2)
    first.end_all(generation.END_REASON_ABORTED)
    first.policy_id = "1.f1"
    await first.until_running(1)
    first.step(2)
    second.by_itself = True
    await first.die()
    second.step(LIMIT)
    await work.controller.until(lambda: len(work.controller.done) == 16)
    stored = await work.stored()
    assert len(stored) == 16
    for (group, index), sample in stored.items():
        check(sample, group, index)


async def test_a_revoked_group_is_cancelled(bench):
    work = await bench().start(ScriptedAgent("a", "3.f1", by_itself=False))
    agent = work.agents[0]
    work.controller.send(leases=[lease(1, [0, 1], ROW, floor=3), lease(2, [0], ROW, floor=3)])
    await agent.until_running(3)
    work.controller.send(revoked=[1])
    async with asyncio.timeout(60):
        while len(agent.cancels) < 2:
            agent.changed.clear()
            await agent.changed.wait()
    agent.step(LIMIT)
    await work.controller.until(lambda: len(work.controller.done) == 1)
    assert sorted(await work.stored()) == [(2, 0)]


async def test_many_leases_in_one_message_leave_beats_their_turn(bench):
    work = await bench().start(ScriptedAgent("a", by_itself=False))
    leases = [lease(group, list(range(8)), ROW) for group in range(1, 101)]
    work.worker._ordered(rollout.WorkOrders(controller_fence=1, leases=leases))
    running = [0]
    async with asyncio.timeout(60):
        while running[-1] < 800:
            await asyncio.sleep(0)
            running.append(work.worker._runner.running)
    assert max(after - before for before, after in pairwise(running)) <= ACTIONS_AT_ONCE
    await work.agents[0].until_running(800)


class Wild(RLVRWorkflow):
    """Does to sample 0 of a group what the row asks for; the others are well."""

    async def arun_episode(self, engine, row):
        if engine._backend._index == 0:  # a test's shortcut: workflows don't know their index
            match row.get("do"):
                case "raise":
                    raise ZeroDivisionError("user's own")
                case "none":
                    return None
                case "hang":
                    await asyncio.Event().wait()
                case "block":
                    threading.Event().wait(30)
                case "spin":
                    while True:
                        pass
                case "cancel":
                    raise asyncio.CancelledError
                case "nonsense":
                    return 3
                case "lie":
                    result = await engine.agenerate(GenerationRequest([4, 5]))
                    sequence = Sequence.of([4, 5], result, 1.0)
                    return Episode([replace(sequence, loss_mask=sequence.loss_mask | 1)])
                case "down":
                    raise InfraError("the user's own service is down")
        return await super().arun_episode(engine, row)


def row(do):
    return b'{"prompt": "321=", "do": "%s"}' % do.encode()


@pytest.mark.parametrize(
    ("do", "kind", "words"),
    [
        ("raise", rollout.FAILURE_KIND_EXCEPTION, "ZeroDivisionError: user's own"),
        ("none", rollout.FAILURE_KIND_REJECTED, "returned None"),
        ("cancel", rollout.FAILURE_KIND_EXCEPTION, "CancelledError"),
        ("nonsense", rollout.FAILURE_KIND_EXCEPTION, "returned int, not an Episode"),
        ("lie", rollout.FAILURE_KIND_EXCEPTION, "no engine sampled"),
        ("down", rollout.FAILURE_KIND_INFRA, "own service is down"),
    ],
)
async def test_what_user_code_does_costs_its_sample_only(bench, do, kind, words):
    work = await bench(workflow=Wild).start()
    work.controller.send(leases=[lease(1, [0, 1, 2], row(do)), lease(2, [0, 1, 2], row("well"))])
    await work.controller.until(lambda: len(work.controller.done) == 5 and bool(work.controller.failures))
    (failure,) = work.controller.failures
    assert (failure.group, failure.index, failure.kind) == (1, 0, kind)
    assert words in failure.fault.message
    if do == "raise":
        assert 'raise ZeroDivisionError("user\'s own")' in failure.fault.traceback


async def test_a_hang_ends_at_the_groups_deadline_with_its_place(bench):
    work = await bench(workflow=Wild).start()
    work.controller.send(leases=[lease(1, [0, 1, 2], row("hang"), deadline_s=1.0)])
    await work.controller.until(lambda: bool(work.controller.failures))
    (failure,) = work.controller.failures
    assert (failure.index, failure.kind) == (0, rollout.FAILURE_KIND_HANG)
    assert "await asyncio.Event().wait()" in failure.fault.traceback
    assert len(work.controller.done) == 2


@pytest.mark.parametrize("do", ["block", "spin"])
async def test_a_blocking_call_costs_its_group_alone_and_heartbeats_go_on(bench, do):
    work = await bench(workflow=Wild, stall_s=1.5).start(ScriptedAgent("a", by_itself=False))
    work.controller.send(leases=[lease(2, [1, 2], row("well"))])
    await work.agents[0].until_running(2)
    began = time.monotonic()
    work.controller.send(leases=[lease(1, [0], row(do))])
    await work.controller.until(lambda: bool(work.controller.failures))
    async with asyncio.timeout(60):
        while len(work.agents[0].starts) < 4:  # the others began anew
            work.agents[0].changed.clear()
            await work.agents[0].changed.wait()
    beats = [message.beat.monotonic_s for message in work.controller.messages]
    assert len(beats) >= 2 * (time.monotonic() - began) - 2
    work.agents[0].step(LIMIT)
    await work.controller.until(lambda: len(work.controller.done) == 2)
    (culprit,) = work.controller.failures
    assert (culprit.group, culprit.index, culprit.kind) == (1, 0, rollout.FAILURE_KIND_HANG)
    assert "arun_episode" in culprit.fault.traceback


async def test_of_rows_a_third_of_which_block_only_these_end_and_as_hangs(bench):
    blocking = set(range(0, 12, 3))
    work = await bench(workflow=Wild, stall_s=0.5).start()
    work.controller.send(leases=[lease(g, [0, 1], row("block" if g in blocking else "well")) for g in range(12)])
    await work.controller.until(lambda: len(work.controller.done) == 16 and len(work.controller.failures) == 8)
    assert {failure.group for failure in work.controller.failures} == blocking
    assert {failure.kind for failure in work.controller.failures} == {rollout.FAILURE_KIND_HANG}
    stored = await work.stored()
    assert {group for group, _ in stored} == set(range(12)) - blocking
    for (group, index), sample in stored.items():
        check(sample, group, index)


@pytest.mark.parametrize(
    ("words", "what"),
    [("token 4 \\(turn 0\\) is 5, the engine sampled", "alter"), ("with temperature 0.5", "cool"), ("no room", "long")],
)
async def test_an_episode_that_is_not_as_it_was_sampled_loses_its_group_in_words(bench, words, what):
    class Untrue(RLVRWorkflow):
        async def arun_episode(self, engine, row):
            prompt = engine.prompt(row).ids if what != "long" else [4] * 100
            sampling = replace(engine.sampling, temperature=0.5) if what == "cool" else None
            result = await engine.agenerate(GenerationRequest(prompt, sampling))
            made = Sequence.of(prompt, result, 1.0)
            if what == "alter":
                made.input_ids[len(prompt)] = 5 if made.input_ids[len(prompt)] != 5 else 6
            return Episode([made])

    work = await bench(workflow=Untrue).start()
    work.controller.send(leases=[lease(1, [0], ROW)])
    await work.controller.until(lambda: bool(work.controller.failures))
    (failure,) = work.controller.failures
    assert re.search(words, failure.fault.message)
    rejected = what == "long"  # nothing is wrong but this row
    assert failure.kind == (rollout.FAILURE_KIND_REJECTED if rejected else rollout.FAILURE_KIND_EXCEPTION)
    assert not work.controller.done


async def test_late_samples_end_as_they_are_masked(bench):
    work = await bench().start(ScriptedAgent("a", by_itself=False))
    agent = work.agents[0]
    work.controller.send(leases=[lease(1, [2, 3], ROW, group_size=4, deadline_s=1.5)])
    await agent.until_running(2)
    agent.step(1)
    await work.controller.until(lambda: len(work.controller.done) == 2)
    for sample in (await work.stored()).values():
        (sequence,) = sample.sequences
        assert len(sequence.token_ids) // 4 == PROMPT + 1
        assert sum(sequence.loss_mask) == 0
        assert sequence.finish_reason == "deadline"
    assert all(done.truncated and done.masked for done in work.controller.done)


async def test_infra_faults_of_scoring_are_tried_again_and_data_faults_are_the_users(bench):
    work = bench()
    tries: list[int] = []

    def judge(item):
        tries.append(item.key.index)
        if item.key.index == 0 and tries.count(0) == 1:
            return fault(common.FAULT_KIND_INFRA, "pool died")
        if item.key.index == 1:
            return fault(common.FAULT_KIND_DATA, "reward() raised KeyError", 'File "/me/recipe.py", line 3, in reward')
        return type(fault(common.FAULT_KIND_INFRA, ""))(score=0.5)

    work.reward.judge = judge
    await work.start()
    work.controller.send(leases=[lease(1, [0, 1], ROW)])
    await work.controller.until(lambda: bool(work.controller.done) and bool(work.controller.failures))
    assert work.controller.done[0].reward == 0.5
    (failure,) = work.controller.failures
    assert (failure.index, failure.kind) == (1, rollout.FAILURE_KIND_EXCEPTION)
    assert headline(f"{failure.fault.message}\n{failure.fault.traceback}") == "reward() raised KeyError (recipe.py:3)"


async def test_a_new_controller_hears_what_is_held_and_what_is_done(bench):
    work = await bench().start(ScriptedAgent("a", by_itself=False))
    agent = work.agents[0]
    work.controller.send(leases=[lease(1, [0, 1], ROW), lease(2, [0], ROW)])
    await agent.until_running(3)
    agent.step(1)
    agent._make(next(iter(agent.running.values())), LIMIT)
    await work.controller.until(lambda: len(work.controller.done) == 1)
    finished = work.controller.done[0].key
    await work.controller.die()
    work.controller.fence = 2
    await work.controller.start()
    await work.controller.until(lambda: len(work.controller.streams) == 2 and bool(work.controller.streams[1]))
    hello = work.controller.streams[1][0]
    held = {(item.group, index) for item in hello.held for index in item.indices}
    assert held == {(1, 0), (1, 1), (2, 0)} - {(finished.group, finished.index)}
    assert all(item.has_tokens for item in hello.held)
    assert [(done.key.group, done.key.index) for done in hello.done] == [(finished.group, finished.index)]
    agent.step(LIMIT)
    await work.controller.until(lambda: len({(d.key.group, d.key.index) for d in work.controller.done}) == 3)
    assert len(agent.starts) == 3


async def test_samples_survive_a_ledger_that_dies_and_forgets(bench, tmp_path):
    redis = RedisServer.start(tmp_path / "redis")
    try:
        work = await bench(redis=redis).start()
        work.controller.send(leases=[lease(1, [0, 1], ROW)])
        await work.controller.until(lambda: len(work.controller.done) == 2)
        redis.kill()
        work.controller.send(leases=[lease(2, [0, 1], ROW)])
        await work.agents[0].until_running(0)
        for file in (redis.directory / "appendonlydir").iterdir():
            file.unlink()
        redis.restart()
        work.controller.send(resend=True)
        await work.controller.until(lambda: len(work.controller.done) >= 6, timeout_s=25)
        stored = await work.stored()
        assert sorted(stored) == [(1, 0), (1, 1), (2, 0), (2, 1)]
        for (group, index), sample in stored.items():
            check(sample, group, index)
        assert len(work.agents[0].starts) == 4
        work.controller.send(committed_group=2)
        await work.controller.until(lambda: 1 not in work.worker.core.samples)
    finally:
        redis.stop()


async def test_an_evaluation_is_greedy_and_leaves_the_ledger_alone(bench):
    work = await bench().start()
    rows = [rollout.EvalLease(evaluation_id="0.f1", row=r, floor=0, row_json=ROW) for r in range(8)]
    work.controller.send(evaluations=rows)
    await work.controller.until(lambda: len(work.controller.evaluated) == 8)
    assert {(done.evaluation_id, done.oldest_version) for done in work.controller.evaluated} == {("0.f1", 0)}
    for start in work.agents[0].starts:
        assert start.sampling.temperature == 0.0
        assert start.sampling.max_new_tokens == LIMIT
        assert not start.sampling.HasField("seed")
    assert await work.stored() == {}


async def test_the_last_answers_of_an_evaluation_come_with_their_tokens(bench, monkeypatch):
    """The run may end with that message: what it doesn't tell then counts as lost."""
    monkeypatch.setattr("areal.rollout.worker.worker.PERIOD_S", 60.0)
    work = await bench().start()
    rows = [rollout.EvalLease(evaluation_id="0.f1", row=r, floor=0, row_json=ROW) for r in range(8)]
    work.controller.send(evaluations=rows)
    await work.controller.until(lambda: len(work.controller.evaluated) == 8)
    told = [message for message in work.controller.messages if message.evaluated][-1].token_fates
    assert (told["evaluated"], told["in_flight"]) == (work.client.tokens_total, 0)
    assert work.client.tokens_total > 0


async def test_sampled_answers_to_a_row_are_drawn_with_their_own_seeds(bench):
    work = await bench().start()
    rows = [rollout.EvalLease(evaluation_id="0.f1", row=0, floor=0, row_json=ROW, sample=s) for s in range(3)]
    work.controller.send(evaluations=rows)
    await work.controller.until(lambda: len(work.controller.evaluated) == 3)
    assert sorted(done.sample for done in work.controller.evaluated) == [0, 1, 2]
    sampled = [start.sampling for start in work.agents[0].starts if start.sampling.temperature]
    assert [one.temperature for one in sampled] == [pytest.approx(0.5)] * 2
    assert len({one.seed for one in sampled}) == 2
    assert await work.stored() == {}


async def test_a_drained_worker_gives_its_groups_back(bench):
    work = await bench().start(ScriptedAgent("a", by_itself=False))
    work.controller.send(leases=[lease(1, [0], ROW), lease(2, [0], ROW)])
    await work.agents[0].until_running(2)
    work.stop.set()
    assert await asyncio.wait_for(work.task, 60) is False
    released = [group for message in work.controller.messages for group in message.released]
    assert released == [1, 2]


async def test_a_drained_worker_stores_what_it_has_made(bench):
    work = await bench().start()
    ready, go = asyncio.Event(), asyncio.Event()
    add_samples = work.ledger.add_samples

    async def slowly(samples):
        ready.set()
        await go.wait()
        return await add_samples(samples)

    work.ledger.add_samples = slowly
    work.controller.send(leases=[lease(1, [0, 1], ROW)])
    await asyncio.wait_for(ready.wait(), 60)
    work.stop.set()
    go.set()
    await asyncio.wait_for(work.task, 60)
    assert len(await work.stored()) == len(work.controller.done) >= 1


async def test_the_end_of_the_run_ends_the_worker(bench):
    work = await bench().start()
    work.controller.send(stop=True)
    assert await asyncio.wait_for(work.task, 60) is True


async def test_a_wait_for_weights_is_told_by_name(bench):
    work = await bench().start()
    work.controller.send(leases=[lease(1, [0], ROW, floor=4)])
    await work.controller.until(
        lambda: any(
            wait.waits_for == "version ≥ 4 on a server"
            for message in work.controller.messages
            for wait in message.waiting
        )
    )
    work.agents[0].policy_id = "4.f1"
    work.tell_fleet()
    await work.controller.until(lambda: len(work.controller.done) == 1)
    assert work.controller.done[0].oldest_version == 4


class Turns(RolloutWorkflow):
    """Generates twice, at the same time and after."""

    async def arun_episode(self, engine, row):
        prompt = engine.prompt(row)
        pair = await asyncio.gather(*(engine.agenerate(GenerationRequest(prompt.ids)) for _ in range(2)))
        last = await engine.agenerate(GenerationRequest(list(range(4, 20)) * 4))
        assert len(last.output_ids) == 0, "64 tokens are the sample's budget"
        return Episode([Sequence.of(prompt.ids, result, 0.0) for result in pair])


async def test_turns_have_their_own_seeds_and_the_sample_its_token_budget(bench):
    work = await bench(workflow=Turns).start()
    work.controller.send(leases=[lease(1, [0], ROW)])
    await work.controller.until(lambda: len(work.controller.done) == 1)
    assert [start.sampling.seed for start in work.agents[0].starts] == [sample_seed(SEED, 1, 0, t) for t in range(2)]
    (sample,) = (await work.stored()).values()
    assert len(sample.sequences) == 2
