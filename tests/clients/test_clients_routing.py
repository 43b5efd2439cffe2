"""The choice of a server, and what a client remembers of the fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.clients.generation.fleet import DOUBT_S, Fleet
from areal.clients.generation.routing import OVERLOAD_SLACK, RoutedServer, choose, eligible
from areal.v1 import generation_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

servers = st.builds(
    RoutedServer,
    server_id=st.sampled_from("abcdef"),
    version=st.integers(-1, 5),
    live=st.booleans(),
    ready=st.booleans(),
    draining=st.booleans(),
    connected=st.booleans(),
    load=st.integers(0, 100),
    refused_floor=st.none() | st.integers(-3, 5),
)
fleets = st.lists(servers, max_size=6, unique_by=lambda server: server.server_id)


@given(fleet=fleets, floor=st.integers(-3, 6), preferred=st.none() | st.sampled_from("abcdef"))
def test_a_chosen_server_is_eligible_and_only_the_groups_own_may_be_busier(fleet, floor, preferred):
    chosen = choose(fleet, floor, preferred)
    candidates = {server.server_id: server for server in fleet if eligible(server, floor)}
    assert (chosen is None) == (not candidates)
    if chosen is not None:
        least = min(server.load for server in candidates.values())
        assert candidates[chosen].load == least or chosen == preferred


def test_a_group_keeps_its_server_until_that_is_overloaded():
    busy, idle = RoutedServer("a", 3, load=OVERLOAD_SLACK), RoutedServer("b", 3, load=0)
    assert choose([busy, idle], 3, "a") == "a"
    assert choose([replace(busy, load=OVERLOAD_SLACK + 1), idle], 3, "a") == "b"


def test_only_the_floor_counts_not_the_lag():
    assert choose([RoutedServer("old", 1, load=0), RoutedServer("new", 9, load=1)], 1) == "old"
    assert choose([RoutedServer("old", 1, load=0), RoutedServer("new", 9, load=1)], 2) == "new"


@pytest.mark.parametrize(
    "change",
    [
        {"live": False},
        {"ready": False},
        {"draining": True},
        {"connected": False},
        {"version": -1},
        {"refused_floor": 0},
    ],
)
def test_a_server_that_may_not_be_routed_to_is_never_chosen(change):
    assert choose([replace(RoutedServer("a", 3), **change)], 0 if "refused_floor" in change else -9) is None


def state(server_id="a", **fields):
    values = {"address": "x:1", "policy_id": "3.f1", "version": 3, "live": True, "ready": True, **fields}
    return wire.ServerState(server_id=server_id, **values)


def only(fleet, own=None):
    (server,) = fleet.servers(own if own is not None else {"a": 0})
    return server


def test_a_doubt_ends_with_a_different_report_or_with_time():
    fleet = Fleet()
    fleet.update([state()], {})
    fleet.refused("a", 2, now=10.0)
    assert not eligible(only(fleet), 2)
    assert eligible(only(fleet), 1)
    fleet.update([state(running=9)], {})  # load says nothing about its version
    assert not eligible(only(fleet), 2)
    assert not fleet.expire(10.0 + DOUBT_S - 0.01)
    assert fleet.expire(10.0 + DOUBT_S)
    assert eligible(only(fleet), 2)
    fleet.penalise("a", 20.0)
    assert not eligible(only(fleet), 2)
    fleet.update([state(policy_id="4.f1", version=4)], {})
    assert eligible(only(fleet), 2)


def test_load_is_others_as_reported_plus_ours_as_known():
    fleet = Fleet()
    fleet.update([state(running=10, waiting=2)], {"a": 5})
    assert only(fleet, {"a": 8}).load == 7 + 8
    assert only(fleet, {"a": 0}).load == 7


def test_a_server_without_our_stream_is_not_connected():
    fleet = Fleet()
    fleet.update([state()], {})
    assert not only(fleet, {}).connected
