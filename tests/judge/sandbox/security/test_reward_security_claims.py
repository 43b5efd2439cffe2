"""Every claim of isolation, in every tier that this machine offers: attacks in an outer cell, judged from outside."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandbox.attacks.claims import ATTACKS, CLAIMS, Claim
from sandbox.security import outer_cell
from sandbox.security.settings import SETTINGS, Setting

pytestmark = [pytest.mark.component, pytest.mark.skipif(bool(outer_cell.lacking()), reason=outer_cell.lacking())]


def settings_of_the_machine() -> dict[str, str]:
    """What the kernel would run for a program that crashes, or for a group that is empty; whom it would end."""
    names = ("core_pattern", "modprobe", "shmmni", "sem", "msgmni", "hostname")
    paths = [Path("/proc/1/oom_score_adj"), *(Path("/proc/sys/kernel", name) for name in names)]
    paths += Path("/sys/fs/cgroup").glob("*/release_agent")
    return {str(path): path.read_text() for path in paths if path.exists()}


@pytest.fixture(scope="module")
def settings_before() -> dict[str, str]:
    return settings_of_the_machine()


@pytest.fixture(scope="module")
def battles(settings_before: dict[str, str]) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """All attacks on each sandbox, two sandboxes at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            one.name: pool.submit(outer_cell.fight, one.of(ATTACKS), tier=one.tier.name, uid=one.uid, at_once=6)
            for one in SETTINGS
        }


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda setting: setting.name)
def battle(
    request: pytest.FixtureRequest, battles: dict[str, Future[dict[str, Any]]]
) -> tuple[Setting, dict[str, Any]]:
    setting: Setting = request.param
    return setting, battles[setting.name].result()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"claim{claim.number}")
def test_no_attack_on_a_claim_wins(battle: tuple[Setting, dict[str, Any]], claim: Claim) -> None:
    setting, said = battle
    tried = setting.of(claim.attacks)
    assert tried
    won = {name: said["verdicts"][name] for name in tried if said["verdicts"][name]["won"]}
    assert not won, f"claim {claim.number}: {claim.text}"


def test_a_neighbour_of_all_attacks_is_judged_right(battle: tuple[Setting, dict[str, Any]]) -> None:
    _, said = battle
    assert said["neighbour"] > 0
    assert said["wrong"] == []


def test_the_service_outlives_all_attacks(battle: tuple[Setting, dict[str, Any]]) -> None:
    setting, said = battle
    assert said["ready"]["tier"] == setting.tier.name
    assert said["signals"] == 0
    assert said["stopped"]
    assert said["exit_code"] == 0


def test_settings_of_the_machine_are_as_they_were(
    battle: tuple[Setting, dict[str, Any]], settings_before: dict[str, str]
) -> None:
    assert battle[1]["stopped"]
    assert settings_of_the_machine() == settings_before


def test_every_attack_belongs_to_a_claim() -> None:
    assert {name for claim in CLAIMS for name in claim.attacks} == set(ATTACKS)
