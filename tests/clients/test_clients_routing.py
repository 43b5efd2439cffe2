"""The choice of a server, and what a client remembers of the fleet."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from areal.clients.generation.fleet import DOUBT_S, Fleet
from areal.clients.generation.routing import MOVE_GAP, OVERLOAD_SLACK, RoutedServer, choose, eligible, evened
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


@given(fleet=fleets, own=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 100)), draw=st.floats(0, 0.999))
def test_what_moves_goes_from_the_fullest_of_ours_to_a_much_emptier_one_of_its_version(fleet, own, draw):
    own = {server.server_id: min(server.load, own.get(server.server_id, 0)) for server in fleet}
    found = evened(fleet, own, draw)
    routed = {server.server_id: server for server in fleet if eligible(server, -9) or server.refused_floor == -9}
    if found is None:
        return
    full, empty, moved = found
    assert routed.keys() >= {full, empty}
    assert routed[full].version == routed[empty].version
    assert routed[full].load == max(routed[name].load for name, count in own.items() if count and name in routed)
    assert routed[full].load - routed[empty].load >= MOVE_GAP
    assert 1 <= moved <= own[full]
    assert moved <= (routed[full].load - routed[empty].load) // 2 + 1


@given(st.lists(st.lists(st.integers(0, 24), min_size=3, max_size=3), min_size=1, max_size=16), st.integers(0, 2**16))
def test_clients_that_know_each_others_moves_late_even_out_and_then_leave_everything_where_it_is(clients, seed):
    draws = random.Random(seed)
    moves = []
    for _ in range(60):
        known = [sum(each) for each in zip(*clients, strict=True)]
        fleet = [RoutedServer(name, 3, load=load) for name, load in zip("abc", known, strict=True)]
        found = [evened(fleet, dict(zip("abc", mine, strict=True)), draws.random()) for mine in clients]
        moves.append(sum(one[2] for one in found if one))
        for mine, one in zip(clients, found, strict=True):
            if one:
                full, empty, moved = "abc".index(one[0]), "abc".index(one[1]), one[2]
                mine[full], mine[empty] = mine[full] - moved, mine[empty] + moved
    loads = [sum(each) for each in zip(*clients, strict=True)]
    assert max(loads) - min(loads) < MOVE_GAP + len(clients), (loads, moves)
    assert sum(moves[-20:]) <= 20 + sum(moves[:20]), (loads, moves)


def test_a_lone_client_moves_half_of_the_difference_and_nothing_for_a_small_one():
    a, b = RoutedServer("a", 3, load=12), RoutedServer("b", 3, load=0)
    assert evened([a, b], {"a": 12}, 0.0) == ("a", "b", 6)
    assert evened([a, replace(b, load=12 - MOVE_GAP + 1)], {"a": 12}, 0.99) is None
    assert evened([a, replace(b, version=4)], {"a": 12}, 0.99) is None
    assert evened([a, replace(b, refused_floor=3)], {"a": 12}, 0.99) is None
    assert evened([a, b], {"b": 0}, 0.99) is None


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
