"""The agent over a real engine process and real gRPC."""

from __future__ import annotations

import asyncio
import os
import signal

import grpc
import numpy as np
import pytest
from areal.net.channel import connect
from areal.v1 import generation_pb2 as wire
from areal.v1 import generation_pb2_grpc as rpc
from generation_parts import TOKEN, RawClient, start_of
from support.engine_models import CONTEXT, VOCAB, hf_logprobs

pytestmark = [pytest.mark.component, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

PROMPT = [5, 17, 33, 9, 40]


def close(ours, theirs) -> bool:
    return bool(np.allclose(ours, theirs, atol=1e-5))


async def test_wrong_tensors_with_right_checksums_are_never_sampled(fresh, models):
    state = await fresh.until(lambda state: state.live)
    assert (state.version, state.ready, state.policy_id) == (-1, False, "")
    (early,) = await fresh.generate(start_of("early", PROMPT, 4, floor=-2))
    assert (early.reason, early.ids) == ("BELOW_FLOOR", [])

    await fresh.publish(0, 0, canary_of=1)
    state = await fresh.until(lambda state: state.refused.tries >= 2)
    assert not state.ready
    assert state.refused.policy_id == "0.f1"
    assert "canary" in state.refused.reason
    (none,) = await fresh.generate(start_of("none", PROMPT, 4, floor=-3))
    assert none.ids == []

    await fresh.serve(1, 1)
    (good,) = await fresh.generate(start_of("good", PROMPT, 9))
    assert good.spans == [("1.f1", 0, 9)]
    assert close(good.logprobs, hf_logprobs(models[1], PROMPT, good.ids))


async def test_a_killed_engine_ends_requests_as_lost_and_comes_back_with_the_newest_version(fresh, models):
    await fresh.serve(3, 1)
    names = [f"r{number}" for number in range(16)]
    fresh.client.start(*(start_of(name, PROMPT, 450) for name in names))
    await fresh.client.until(lambda: all(len(fresh.client.answers[name].ids) > 0 for name in names))
    pid = fresh.agent.process.pid
    os.kill(pid, signal.SIGKILL)
    answers = await fresh.client.ended(*names)
    assert {answer.reason for answer in answers} == {"ENGINE_LOST"}
    for answer in answers:
        assert close(answer.logprobs, hf_logprobs(models[1], PROMPT, answer.ids))
    await fresh.until(lambda state: not state.ready)
    await fresh.ready(3)
    assert fresh.agent.process.pid != pid
    client = RawClient(fresh.agent.address)
    client.start(start_of("again", PROMPT, 6))
    (again,) = await client.ended("again")
    await client.close()
    assert again.spans == [("3.f1", 0, 6)]
    assert close(again.logprobs, hf_logprobs(models[1], PROMPT, again.ids))


async def test_an_engine_comes_back_though_the_version_it_held_was_collected_meanwhile(fresh, models):
    await fresh.serve(3, 1)
    (fresh.agent.core.accepted.path / "config.json").unlink()
    os.kill(fresh.agent.process.pid, signal.SIGKILL)
    await fresh.until(lambda state: not state.ready)
    await fresh.serve(4, 0)
    (answer,) = await fresh.generate(start_of("after", PROMPT, 6))
    assert answer.spans == [("4.f1", 0, 6)]
    assert close(answer.logprobs, hf_logprobs(models[0], PROMPT, answer.ids))


async def test_a_drain_ends_requests_with_what_was_made(fresh, models):
    await fresh.serve(0, 0)
    await fresh.running(start_of("running", PROMPT, 450))
    async with connect(fresh.agent.address, TOKEN) as channel:
        stub = rpc.GenerationControlStub(channel)
        drained = await stub.DrainAgent(wire.DrainAgentRequest(grace_s=5), timeout=60)
        assert drained.ended_requests == 1
        status = await stub.GetAgentStatus(wire.GetAgentStatusRequest(), timeout=60)
        assert status.state.draining
    (running,) = await fresh.client.ended("running")
    assert running.reason == "DRAINING"
    assert close(running.logprobs, hf_logprobs(models[0], PROMPT, running.ids))
    (late,) = await fresh.generate(start_of("late", PROMPT, 4))
    assert late.reason == "DRAINING"


async def test_a_swap_in_the_middle_of_an_answer_leaves_exact_spans(world, models):
    await world.serve(0, 0)
    before = world.agent.requests.interruptions_total
    newer = world.prepare(1, 1)  # before the answer begins: a slow disk would outlast it
    await world.running(start_of("long", PROMPT, 450))
    await world.controller.want(newer.message())
    (answer,) = await world.client.ended("long")
    assert answer.reason == "LENGTH"
    assert [policy for policy, _, _ in answer.spans] == [world.policy(0), world.policy(1)]
    assert len(answer.ids) == 450
    split = answer.spans[0][2]
    assert close(answer.logprobs[:split], hf_logprobs(models[0], PROMPT, answer.ids)[:split])
    assert close(answer.logprobs[split:], hf_logprobs(models[1], PROMPT, answer.ids)[split:])
    await world.until(lambda state: state.interruptions_total == before + 1)


async def test_a_failed_canary_falls_back_to_the_last_good_version(world, models):
    await world.serve(0, 0)
    await world.running(start_of("long", PROMPT, 450))
    await world.publish(1, 1, canary_of=2)
    state = await world.until(lambda state: state.refused.policy_id == world.policy(1))
    assert "canary" in state.refused.reason
    (interrupted,) = await world.client.ended("long")
    assert interrupted.reason == "ABORTED"
    assert [policy for policy, _, _ in interrupted.spans] == [world.policy(0)]
    assert close(interrupted.logprobs, hf_logprobs(models[0], PROMPT, interrupted.ids))
    await world.ready(0)
    rest = PROMPT + interrupted.ids[:20]
    for number in range(20):  # a retry of the refused version may interrupt a short answer, never falsify it
        (answer,) = await world.generate(start_of(f"rest{number}", rest, 8))
        assert close(answer.logprobs, hf_logprobs(models[0], rest, answer.ids))
        assert {policy for policy, _, _ in answer.spans} <= {world.policy(0)}


async def test_a_corrupted_shard_is_refused_by_the_tensors_name_without_an_interruption(world):
    await world.serve(0, 0)
    before = world.agent.requests.interruptions_total
    bad = world.prepare(1, 1)
    shard = bad.path / "model.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-3] ^= 0xFF
    shard.write_bytes(raw)
    await world.controller.want(bad.message())
    state = await world.until(lambda state: state.refused.policy_id == world.policy(1))
    assert "tensor 'model." in state.refused.reason
    assert (state.ready, state.policy_id, state.interruptions_total) == (True, world.policy(0), before)
    await world.serve(2, 2)
    state = await world.until(lambda state: state.version == 2)
    assert not state.HasField("refused")


async def test_an_older_policy_of_the_same_fence_is_not_taken_but_a_rollback_is(world):
    await world.serve(5, 0)
    await world.publish(4, 1)
    (answer,) = await world.generate(start_of("x", PROMPT, 30, floor=4))
    assert answer.spans == [(world.policy(5), 0, 30)]
    await world.running(start_of("new", PROMPT, 450, floor=5))
    old = world.policy(5)
    world.new_fence()
    rolled_back = await world.publish(3, 2)
    (left,) = await world.client.ended("new")
    assert left.reason == "BELOW_FLOOR"
    assert {policy for policy, _, _ in left.spans} <= {old, str(rolled_back.policy_id)}
    await world.ready(3)


async def test_a_request_below_its_floor_is_sent_away_at_once(world):
    await world.serve(2, 0)
    old, fine = await world.generate(start_of("old", PROMPT, 4, floor=3), start_of("fine", PROMPT, 4, floor=2))
    assert (old.reason, old.ids) == ("BELOW_FLOOR", [])
    assert fine.reason == "LENGTH"


async def test_impossible_requests_are_refused_in_words_and_spoil_no_others(world):
    await world.serve(0, 0)
    bad, fine, long, empty = await world.generate(
        start_of("bad-vocabulary", [3, VOCAB], 4),
        start_of("fine", PROMPT, 4),
        start_of("long", PROMPT, CONTEXT),
        wire.GenerateStart(request_id="empty", sampling=start_of("x", [3], 1).sampling),
    )
    assert [bad.reason, fine.reason, long.reason, empty.reason] == ["REFUSED", "LENGTH", "REFUSED", "REFUSED"]
    assert "vocabulary" in bad.end.fault.message
    assert "context" in long.end.fault.message


async def test_a_cancelled_request_ends_and_leaves_the_engine(world):
    await world.serve(0, 0)
    await world.running(start_of("c", PROMPT, 450))
    world.client.send(wire.GenerateCall(cancels=[wire.GenerateCancel(request_id="c")]))
    (cancelled,) = await world.client.ended("c")
    assert cancelled.reason == "CANCELLED"
    assert len(cancelled.ids) < 450
    await world.until(lambda state: state.running == 0)
    assert len(world.agent.requests) == 0


async def test_an_agent_counts_each_token_that_its_engine_counts(fresh):
    """Whole answers, cancelled ones, and those of a client that went away."""
    await fresh.serve(0, 0)
    await fresh.generate(*[start_of(f"whole{number}", PROMPT, 20 + number) for number in range(4)])
    fresh.client.start(start_of("other", PROMPT, 450))
    await fresh.running(start_of("cancelled", PROMPT, 450))
    fresh.client.send(wire.GenerateCall(cancels=[wire.GenerateCancel(request_id="cancelled")]))
    gone = RawClient(fresh.agent.address)
    gone.start(start_of("gone", PROMPT, 450))
    await gone.until(lambda: len(gone.answers["gone"].ids) > 0)
    await gone.close()
    cancelled, other = await fresh.client.ended("cancelled", "other")
    await fresh.until(lambda state: state.running == 0)
    requests = fresh.agent.requests
    assert requests.tokens_total == await _engine_tokens(fresh)
    assert requests.tokens_total > 86 + len(other.ids) + len(cancelled.ids)
    assert requests.settled_total == requests.tokens_total
    assert (len(requests), requests.over) == (0, {})


async def _engine_tokens(world) -> int:
    async with world.agent.engine._control.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return int(float(next(line for line in lines if line.startswith("sglang:generation_tokens_total")).split()[-1]))


async def test_a_client_that_goes_away_leaves_nothing_running(world):
    await world.serve(0, 0)
    other = RawClient(world.agent.address)
    other.start(start_of("gone", PROMPT, 450))
    await other.until(lambda: len(other.answers["gone"].ids) > 0)
    await other.close()
    state = await world.until(lambda state: len(world.agent.requests) == 0)
    assert state.live


async def test_a_resubmitted_answer_continues_as_if_nothing_had_happened(world):
    await world.serve(0, 0)
    (whole,) = await world.generate(start_of("whole", PROMPT, 40, seed=2**64 - 5))
    part = whole.ids[:17]
    noise = [start_of(f"noise{number}", [number + 3], 30) for number in range(9)]
    rest, *_ = await world.generate(start_of("rest", PROMPT + part, 23, seed=2**64 - 5), *noise)
    assert part + rest.ids == whole.ids


async def test_many_small_answers_travel_in_few_messages(world):
    await world.serve(0, 0)
    before = world.client.messages
    starts = [start_of(f"s{number}", [3 + number % 40, 5], 4, seed=number) for number in range(128)]
    answers = await world.generate(*starts)
    assert all(len(answer.ids) == 4 for answer in answers)
    assert world.client.messages - before <= 32


async def test_a_call_without_the_token_is_refused(world):
    async with connect(world.agent.address, "wrong") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await rpc.GenerationControlStub(channel).GetAgentStatus(wire.GetAgentStatusRequest(), timeout=60)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_controller_that_restarts_hears_from_its_servers_again(world):
    await world.serve(0, 0)
    port = int(world.agent.settings.controller.rpartition(":")[2])
    await world.controller.stop()
    world.controller.states.clear()
    await world.controller.start(port)
    await world.ready(0)
    beats = world.controller.beats
    await asyncio.sleep(1.2)
    assert world.controller.beats - beats >= 2
