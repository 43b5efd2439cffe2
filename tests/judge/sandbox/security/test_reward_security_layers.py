"""Every layer is needed: with it, and what stands behind it, switched off, an attack wins that otherwise doesn't.

This is also what shows that the attacks are real, and that those who watch see them. Nothing leaves the outer cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import pytest
from areal_judge.sandbox.values import Layers, Tier
from sandbox.attacks.claims import ATTACKS
from sandbox.security import outer_cell
from sandbox.security.settings import SETTINGS, Setting

pytestmark = [pytest.mark.component, pytest.mark.skipif(bool(outer_cell.lacking()), reason=outer_cell.lacking())]

_AT_ONCE = 3
_ROOT_T3, _USER_T3, _ROOT_T2, _USER_T2 = SETTINGS


@dataclass(frozen=True)
class Hole:
    """Layers off, and the attacks that then win."""

    setting: Setting
    off: tuple[str, ...]
    winners: tuple[str, ...]


HOLES = (
    Hole(_USER_T2, ("landlock",), (
        "reads_a_file_of_the_machine", "reads_a_file_through_another_process", "leaves_files",
        "makes_others_die_first", "looks_for_other_runs",
    )),
    Hole(_USER_T2, ("landlock", "kill_all"), ("signals_everybody",)),
    Hole(_USER_T2, ("seccomp",), (
        "connects_to_loopback", "connects_to_a_socket_file", "opens_strange_sockets", "mounts", "reaches_the_kernel",
        "makes_namespaces", "leaves_shared_memory", "keeps_a_key", "locks_a_file_that_everybody_reads",
        "raises_its_priority", "raises_its_limits", "forks_without_end", "has_the_kernel_signal_others",
        "changes_metadata", "watches_what_others_do",
    )),
    Hole(_USER_T2, ("seccomp", "landlock"), (
        "connects_to_an_abstract_socket", "traces_a_process", "reads_memory_of_a_process",
        "writes_memory_of_a_process",
    )),
    Hole(_USER_T2, ("seccomp", "kill_all"), ("leaves_a_daemon", "holds_its_pipes")),
    Hole(_USER_T3, ("landlock",), ("signals_the_first_process", "sets_its_cells_sysctls")),
    Hole(_ROOT_T3, ("landlock", "seccomp"), ("traces_the_first_process", "enters_the_first_process")),
    Hole(_USER_T2, ("rlimits",), ("raises_its_limits", "opens_files_without_end", "takes_much_memory")),
    Hole(_USER_T2, ("environment",), ("prints_its_environment",)),
    Hole(_USER_T2, ("descriptors",), ("talks_to_what_made_it",)),
    Hole(_ROOT_T2, ("landlock", "user"), ("reads_a_file_of_root", "opens_the_kernels_settings")),
    Hole(_ROOT_T3, ("network", "seccomp", "landlock"), ("connects_to_loopback", "connects_to_an_abstract_socket")),
    Hole(_ROOT_T3, ("private_root", "landlock"), ("reads_a_file_of_the_machine", "leaves_files")),
    Hole(_ROOT_T3, ("private_root", "landlock", "seccomp", "no_new_privileges"), ("runs_a_setuid_program",)),
    Hole(_ROOT_T3, ("quotas", "cgroup"), ("fills_the_disk", "fills_the_inodes")),
    Hole(_ROOT_T3, ("cgroup",), ("takes_memory_in_children",)),
    Hole(_ROOT_T3, ("cgroup", "rlimits"), ("forks_in_every_child",)),
    Hole(_ROOT_T3, ("namespaces", "kill_all", "landlock", "user", "cgroup"), (
        "leaves_a_daemon", "reads_environments_of_others",
    )),
)  # fmt: skip


@pytest.fixture(scope="module")
def battles(request: pytest.FixtureRequest) -> Iterator[dict[Hole, Future[dict[str, Any]]]]:
    """The battle of every hole that is asked for, a few at a time: most of their time is waiting."""
    asked = [_parameters(item)["hole"] for item in request.session.items if "hole" in _parameters(item)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield {
            hole: pool.submit(
                outer_cell.fight, hole.winners, tier=hole.setting.tier.name, uid=hole.setting.uid, off=hole.off
            )
            for hole in asked
        }


def _parameters(item: pytest.Item) -> dict[str, Any]:
    call = getattr(item, "callspec", None)
    return call.params if call is not None else {}


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: f"{hole.setting.name}-without-{'-'.join(hole.off)}")
def test_without_a_layer_an_attack_wins(battles: dict[Hole, Future[dict[str, Any]]], hole: Hole) -> None:
    verdicts = battles[hole].result()["verdicts"]
    assert [name for name in hole.winners if not verdicts[name]["won"]] == [], json.dumps(verdicts)


def test_every_layer_is_switched_off_somewhere() -> None:
    assert {layer for hole in HOLES for layer in hole.off} == {field.name for field in fields(Layers)}


def test_an_attack_names_the_layers_whose_absence_lets_it_win() -> None:
    for hole in HOLES:
        for name in hole.winners:
            assert set(ATTACKS[name].layers) & set(hole.off), name


def test_holes_are_of_tiers_that_have_the_layer() -> None:
    of_t3 = {"namespaces", "network", "private_root", "quotas", "cgroup"}
    for hole in HOLES:
        assert hole.setting.tier is Tier.T3 or not of_t3 & set(hole.off)
