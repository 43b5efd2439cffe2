"""From answers to deltas: each token once, under the policy that made it, and never before its proof."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from areal.errors import InfraError
from areal.generation import requests
from areal.generation.aborts import Aborts
from areal.generation.core import AgentCore, WantedVersion
from areal.generation.requests import PROVEN_KEPT, ClientStream, LiveRequest, Requests
from areal.observe.waits import ProgressCounter
from areal.v1 import generation_pb2 as wire
from areal.values.policy import PolicyId
from generation_parts import Answer
from hypothesis import given
from hypothesis import strategies as st


class RecordedAborts(Aborts):
    """What would be asked of an engine."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    def one(self, rid: str) -> None:
        self.asked.append(rid)

    def all(self) -> None:
        self.asked.append(None)


class Table:
    """Requests without an engine or a network."""

    def __init__(self, *, routes_at_end: bool = False) -> None:
        self.core = AgentCore()
        self.core.engine_started(None)
        self.aborts = RecordedAborts()
        self.requests = Requests(self.core, "s0", ProgressCounter(), self.aborts, routes_at_end=routes_at_end)
        self.client = ClientStream()

    async def hold(self, policy: str, *, passes: bool = True) -> None:
        parsed = PolicyId.parse(policy)
        self.core.loaded(parsed)
        if passes:
            self.core.accept(WantedVersion(parsed, Path("/v"), ""))
            await self.requests.settle()

    def start(self, name: str = "r", floor: int = 0) -> LiveRequest:
        live = LiveRequest(name, f"0.{name}", [1], {}, floor, self.client, policy=str(self.core.held))
        self.requests.add(live)
        self.requests.waiting.discard(live.rid)
        return live

    @property
    def aborted(self) -> list[str | None]:
        """Of None: all."""
        return self.aborts.asked

    async def heard(self) -> Answer:
        answer = Answer()
        self.client.put(wire.GenerateEvent(request_id="mark"))
        reply = await self.client.next()
        for event in reply.events[:-1]:
            answer.add(event)
        return answer


async def test_a_server_of_a_long_run_remembers_the_newest_proven_versions_alone():
    table = Table()
    for version in range(PROVEN_KEPT + 10):
        await table.hold(f"{version}.f1")
    assert len(table.requests._proven) == PROVEN_KEPT
    newest = f"{PROVEN_KEPT + 9}.f1"
    table.start()
    table.requests.receive(answer(2, [(newest, 0, 2)], version=newest))
    assert len((await table.heard()).ids) == 2


def answer(made: int, spans: list[tuple[str, int, int]] | None, finish=None, version: str = "0.f1", since: int = 0):
    """Of an engine that tells all tokens again, or those from `since` on."""
    meta = {
        "id": "0.r",
        "weight_version": version,
        "finish_reason": finish,
        "completion_tokens": made,
        "output_token_logprobs": [[-0.5 * token, token, None] for token in range(since, made)],
    }
    if spans is not None:
        meta["weight_versions"] = [{"version": name, "start": start, "end": end} for name, start, end in spans]
    return {"output_ids": list(range(since, made)), "meta_info": meta}


LENGTH = {"type": "length", "length": 9}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 40), st.booleans())
async def test_deltas_add_up_to_the_answer_however_it_was_cut(cuts, split, increments):
    table = Table()
    await table.hold("0.f1")
    table.start()
    await table.hold("1.f1")
    total = max(cuts)
    split = min(split, total)
    told = 0
    for made in sorted(cuts):
        spans = [("0.f1", 0, min(split, made)), ("1.f1", min(split, made), made)]
        table.requests.receive(answer(made, spans, since=told))
        told = made if increments else 0
    table.requests.receive(answer(total, [("0.f1", 0, split), ("1.f1", split, total)], LENGTH, since=told))
    heard = await table.heard()
    assert heard.ids == list(range(total))
    assert np.allclose(heard.logprobs, [-0.5 * token for token in range(total)])
    assert heard.spans == [span for span in [("0.f1", 0, split), ("1.f1", split, total)] if span[2] > span[1]]
    assert heard.reason == "LENGTH"
    assert table.requests.tokens_total == total


async def test_tokens_made_after_an_end_are_counted_and_told_to_nobody():
    table = Table()
    await table.hold("0.f1")
    live = table.start()
    table.requests.receive(answer(4, [("0.f1", 0, 4)]))
    table.requests.cancel(live)
    table.requests.receive(answer(7, [("0.f1", 0, 7)], since=4))
    table.requests.receive(answer(7, [("0.f1", 0, 7)], {"type": "abort"}, since=6))  # told again
    assert table.requests.tokens_total == table.requests.settled_total == 7
    assert (await table.heard()).ids == [0, 1, 2, 3]
    table.requests.over.pop("0.r")
    table.requests.receive(answer(9, [("0.f1", 0, 9)], since=7))
    assert table.requests.tokens_total == 7


async def test_tokens_that_wait_for_a_canary_are_not_settled():
    table = Table()
    await table.hold("0.f1")
    live = table.start()
    await table.hold("1.f1", passes=False)
    table.requests.receive(answer(6, [("0.f1", 0, 4), ("1.f1", 4, 6)], version="1.f1"))
    assert (table.requests.tokens_total, table.requests.settled_total) == (6, 4)
    table.requests.cancel(live)
    assert table.requests.settled_total == 6


async def test_routes_are_told_with_the_tokens_that_they_led_to_and_their_number_is_checked():
    table = Table()
    await table.hold("0.f1")
    live = table.start()
    live.ids, live.wants_routes = [7, 8, 9], True

    def rows(begin, end):
        return b"".join(bytes([1, at]) for at in range(begin, end))

    def routed(made, begin, end):
        told = answer(made, [("0.f1", 0, min(made, 4)), ("1.f1", min(made, 4), made)])
        told["meta_info"]["routed_experts"] = b64encode(rows(begin, end)).decode()
        told["meta_info"]["routed_experts_rows"] = end - begin
        return told

    def heard_rows(events):
        return [event.delta.routes for event in events if event.HasField("delta")]

    table.requests.receive(routed(2, 0, 4))
    table.requests.receive(routed(6, 4, 8))  # the last two of a policy without proof
    first = await table.client.next()
    assert heard_rows(first.events) == [rows(0, 4), rows(4, 6)]
    await table.hold("1.f1")
    assert heard_rows((await table.client.next()).events) == [rows(6, 8)]
    with pytest.raises(InfraError, match="told experts of 1 tokens more, after 6 of 8 tokens"):
        table.requests.receive(routed(8, 8, 9))


async def test_who_wants_no_routes_gets_none_and_messages_end_where_routes_are_many():
    table = Table()
    await table.hold("0.f1")
    for wants in (False, True):
        live = table.start()
        live.wants_routes = wants
        told = answer(2, [("0.f1", 0, 2)], LENGTH)
        told["meta_info"]["routed_experts"] = b64encode(bytes(2 * (3 << 20))).decode()
        told["meta_info"]["routed_experts_rows"] = 2
        table.requests.receive(told)
        assert bool(live.routes) == wants
    again = table.start()
    again.wants_routes = True
    table.requests.receive(told)
    events = [(await table.client.next()).events for _ in range(3)]
    assert [[len(event.delta.routes) >> 20 for event in part] for part in events] == [[0, 0, 3, 3], [0, 3, 3], [0]]
    assert [len(event.delta.token_ids) // 4 for event in events[0]] == [2, 0, 1, 1]


async def test_ids_that_the_end_repeats_are_not_taken_again_and_a_gap_is_no_answer():
    table = Table()
    await table.hold("0.f1")
    table.start()
    table.requests.receive(answer(4, [("0.f1", 0, 4)], since=0))
    with pytest.raises(InfraError, match="told 4 tokens, then those from 5 on"):
        table.requests.receive(answer(7, [("0.f1", 0, 7)], since=5))
    ended = answer(6, [("0.f1", 0, 6)], {"type": "abort", "message": "Abort in waiting queue"}, since=4)
    ended["output_ids"] += ended["output_ids"][-1:]  # as SGLang joins events that wait
    ended["meta_info"]["output_token_logprobs"] += answer(6, [])["meta_info"]["output_token_logprobs"]
    table.requests.receive(ended)
    heard = await table.heard()
    assert heard.ids == [0, 1, 2, 3, 4, 5]
    assert np.allclose(heard.logprobs, [-0.5 * token for token in range(6)])


async def test_an_answer_to_images_that_the_engine_cut_otherwise_is_refused_before_a_token_of_it_is_told():
    table = Table()
    await table.hold("0.f1")
    for read, reason, tokens in [(7, "REFUSED", 0), (1, "LENGTH", 2)]:
        table.start().images = ["data:image/png;base64,"]
        told = answer(2, [("0.f1", 0, 2)], finish=LENGTH)
        told["meta_info"]["prompt_tokens"] = read
        table.requests.receive(told)
        heard = await table.heard()
        assert (heard.reason, len(heard.ids)) == (reason, tokens)
        assert heard.end is not None
        assert ("made 7 tokens of a prompt with images, not 1" in heard.end.fault.message) == (reason == "REFUSED")
    assert table.aborted == ["0.r"]


async def test_tokens_of_an_unproven_policy_wait_and_follow_its_proof():
    table = Table()
    await table.hold("0.f1")
    table.start()
    await table.hold("1.f1", passes=False)
    table.requests.receive(answer(6, [("0.f1", 0, 4), ("1.f1", 4, 6)]))
    assert (await table.heard()).ids == [0, 1, 2, 3]
    table.requests.receive(answer(9, [("0.f1", 0, 4), ("1.f1", 4, 9)], LENGTH))
    assert (await table.heard()).ids == []
    await table.hold("1.f1")
    rest = await table.heard()
    assert rest.ids == [4, 5, 6, 7, 8]
    assert rest.spans == [("1.f1", 0, 5)]
    assert rest.reason == "LENGTH"


async def test_tokens_of_a_policy_that_failed_are_never_told():
    table = Table()
    await table.hold("0.f1")
    table.start()
    await table.hold("1.f1", passes=False)
    table.requests.receive(answer(9, [("0.f1", 0, 4), ("1.f1", 4, 9)], LENGTH))
    await table.requests.discard()
    heard = await table.heard()
    assert heard.ids == [0, 1, 2, 3]
    assert heard.reason == "ABORTED"
    assert table.aborted == [None]


async def test_without_spans_only_what_is_certain_is_told():
    table = Table()
    await table.hold("0.f1")
    table.start()
    table.requests.receive(answer(3, None, version="0.f1"))
    assert (await table.heard()).spans == [("0.f1", 0, 3)]
    await table.hold("1.f1")
    table.requests.receive(answer(8, None, version="1.f1"))
    assert (await table.heard()).ids == []
    table.requests.receive(answer(9, [("0.f1", 0, 5), ("1.f1", 5, 9)], LENGTH, version="1.f1"))
    rest = await table.heard()
    assert rest.spans == [("0.f1", 0, 2), ("1.f1", 2, 6)]
    assert rest.reason == "LENGTH"


@pytest.mark.parametrize(("spans_told", "lost"), [(False, 5), (True, 0)])
async def test_a_death_after_a_swap_loses_what_came_since_where_versions_are_told_last(spans_told, lost):
    table = Table()
    await table.hold("0.f1")
    table.start()
    table.requests.receive(answer(3, [("0.f1", 0, 3)] if spans_told else None, version="0.f1"))
    await table.hold("1.f1")
    made = [("0.f1", 0, 3), ("1.f1", 3, 8)] if spans_told else None
    table.requests.receive(answer(8, made, version="1.f1"))
    table.requests.lose_all()
    heard = await table.heard()
    assert (8 - len(heard.ids), heard.reason) == (lost, "ENGINE_LOST")


async def test_an_older_version_sends_away_who_needs_a_newer_one_with_what_was_made():
    table = Table()
    await table.hold("5.f1")
    live = table.start(floor=5)
    await table.hold("3.f2")
    assert table.aborted == ["0.r"]
    table.requests.receive(answer(4, [("5.f1", 0, 4)], {"type": "abort", "message": "Aborted"}, version="3.f2"))
    heard = await table.heard()
    assert (heard.ids, heard.reason) == ([0, 1, 2, 3], "BELOW_FLOOR")
    assert live.done


async def test_a_lost_engine_ends_every_request_once():
    table = Table()
    await table.hold("0.f1")
    table.start()
    table.requests.receive(answer(2, [("0.f1", 0, 2)]))
    table.requests.lose_all()
    table.requests.lose_all()
    table.requests.receive(answer(3, [("0.f1", 0, 3)]))
    heard = await table.heard()
    assert (heard.ids, heard.reason) == ([0, 1], "ENGINE_LOST")
    assert len(table.requests) == 0


async def test_a_drain_does_not_wait_for_ever_for_an_engine_that_is_silent():
    table = Table()
    await table.hold("0.f1")
    table.start()
    assert await table.requests.drain(0.05) == 1
    assert (await table.heard()).reason == "DRAINING"


ABORTED = {"type": "abort"}
ROW = 3  # bytes of a token's routes


def stock(live: LiveRequest, first: int, made: int, finish: dict[str, object] | None = None) -> dict[str, object]:
    """SGLang's answer with the tokens from `first` on, as the engine's client hands it on: routes at the end alone."""
    told = answer(made, [("0.f1", 0, made)], finish, since=first)
    told["meta_info"]["id"] = live.rid
    if finish is not None:
        told["meta_info"]["routed_experts_rows"] = len(live.ids) + made - 1
        told["meta_info"]["routed_experts"] = bytes(range((len(live.ids) + made - 1) * ROW))
    return told


def deltas(reply: wire.GenerateReply) -> list[tuple[int, int]]:
    """Tokens and routes of each delta."""
    return [(len(e.delta.token_ids) // 4, len(e.delta.routes)) for e in reply.events if e.HasField("delta")]


async def test_where_routes_come_at_the_end_no_token_is_told_before_them():
    table = Table(routes_at_end=True)
    await table.hold("0.f1")
    live, plain = table.start("routed"), table.start("plain")
    live.wants_routes = True
    table.requests.receive(stock(live, 0, 4))
    table.requests.receive(stock(plain, 0, 4))
    assert deltas(await table.client.next()) == [(4, 0)]
    table.requests.receive(stock(live, 4, 6, LENGTH))
    reply = await table.client.next()
    assert deltas(reply) == [(6, 6 * ROW)]
    assert reply.events[-1].end.reason == wire.END_REASON_LENGTH


async def test_routes_of_another_number_of_tokens_are_left_out_and_the_answer_is_told():
    table = Table(routes_at_end=True)
    await table.hold("0.f1")
    live = table.start()
    live.wants_routes = True
    told = stock(live, 0, 4, LENGTH)
    told["meta_info"]["routed_experts_rows"] -= 1
    table.requests.receive(told)
    reply = await table.client.next()
    assert deltas(reply) == [(4, 0)]
    assert reply.events[-1].end.reason == wire.END_REASON_LENGTH


async def test_a_client_of_an_answer_that_is_withheld_hears_that_it_is_being_made(monkeypatch):
    monkeypatch.setattr(requests, "ALIVE_S", 0.0)
    table = Table(routes_at_end=True)
    await table.hold("0.f1")
    live = table.start()
    live.wants_routes = True
    table.requests.receive(stock(live, 0, 4))
    assert deltas(await table.client.next()) == [(0, 0)]


async def test_before_a_pause_what_runs_is_handed_back_with_the_routes_that_it_has():
    table = Table(routes_at_end=True)
    await table.hold("0.f1")
    lives = [table.start(name) for name in ("a", "b")]
    for live in lives:
        live.wants_routes = True
        table.requests.receive(stock(live, 0, 4))
    handing = asyncio.create_task(table.requests.hand_back())
    await asyncio.sleep(0)
    assert table.aborted == [None]
    table.requests.receive(stock(lives[0], 4, 5, ABORTED))
    await asyncio.sleep(0)
    assert not handing.done()
    table.requests.receive(stock(lives[1], 4, 4, ABORTED))
    await asyncio.wait_for(handing, 5)
    reply = await table.client.next()
    assert deltas(reply) == [(5, 5 * ROW), (4, 4 * ROW)]
    assert [e.end.reason for e in reply.events if e.HasField("end")] == [wire.END_REASON_ABORTED] * 2


async def test_what_the_engine_does_not_answer_before_a_pause_ends_without_a_token(monkeypatch):
    monkeypatch.setattr(requests, "HAND_BACK_S", 0.05)
    table = Table(routes_at_end=True)
    await table.hold("0.f1")
    live = table.start()
    live.wants_routes = True
    table.requests.receive(stock(live, 0, 4))
    await table.requests.hand_back()
    reply = await table.client.next()
    assert deltas(reply) == []
    assert [e.end.reason for e in reply.events] == [wire.END_REASON_ABORTED]
    table.requests.receive(stock(live, 4, 9, LENGTH))  # made after the pause, by nobody knows which version
    assert not table.client._events


@pytest.mark.parametrize(("at_end", "wants"), [(True, False), (False, True)])
async def test_nothing_is_handed_back_where_routes_stay_true_through_a_pause(at_end, wants):
    table = Table(routes_at_end=at_end)
    await table.hold("0.f1")
    live = table.start()
    live.wants_routes = wants
    await table.requests.hand_back()
    assert table.aborted == []
    assert not live.done
