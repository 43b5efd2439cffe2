"""What a sandbox reports is what it does, and what its tier can't run is refused: claims 9 and 10."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError
from areal_judge.sandbox.host import acts, probing
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig, SandboxRefusalError
from areal_judge.sandbox.host.selftest import self_test
from areal_judge.sandbox.values import ImageCommand, Limits, ProgramRun, PythonScript, Tier
from support.as_user import as_user, needs_root

pytestmark = pytest.mark.component
_TESTS = Path(__file__).resolve().parents[3]
_IN_GVISOR_S = 120


@contextlib.asynccontextmanager
async def sandbox_of(highest: Tier) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(SandboxConfig(zygotes=1, highest_tier=highest))
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


def reported(wrap: Sequence[str], highest: str) -> dict[str, Any]:
    """What `report_of_powers` says when it is started through something."""
    done = subprocess.run(
        [*wrap, "env", f"PYTHONPATH={_TESTS / 'judge'}:{_TESTS}:{_TESTS.parent / 'services'}",
         sys.executable, "-m", "sandbox.security.report_of_powers", highest],
        capture_output=True, text=True, timeout=_IN_GVISOR_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def held(probes: list[dict[str, Any]]) -> set[str]:
    return {probe["name"] for probe in probes if probe["held"]}


async def test_a_restricted_sandbox_does_what_it_reports() -> None:
    async with sandbox_of(Tier.T2) as sandbox:
        assert sandbox.powers.tier is Tier.T2
        assert [probe for probe in await self_test(sandbox) if not probe.held] == []


async def test_the_best_sandbox_of_this_machine_does_what_it_reports() -> None:
    async with sandbox_of(Tier.T4) as sandbox:
        assert [probe for probe in await self_test(sandbox) if not probe.held] == []


@pytest.mark.parametrize(
    "run",
    [
        ProgramRun(ImageCommand(("/bin/true",))),
        ProgramRun(PythonScript("print(1)"), limits=Limits(processes=4)),
        ProgramRun(PythonScript("print(1)"), files={"given": b"1"}),
        ProgramRun(PythonScript("print(1)"), keep=("made",)),
    ],
    ids=["exec", "fork", "files", "kept-files"],
)
async def test_a_run_below_whose_tier_the_machine_is_gets_refused_with_the_way_out(run: ProgramRun) -> None:
    async with sandbox_of(Tier.T2) as sandbox:
        with pytest.raises(SandboxRefusalError, match="T2") as refused:
            await sandbox.run(run)
        assert refused.value.fix
        assert sandbox.counters().runs == 0


async def test_a_service_below_its_least_tier_does_not_start() -> None:
    sandbox = Sandbox(SandboxConfig(min_tier=Tier.T3, highest_tier=Tier.T2))
    with pytest.raises(ConfigError, match="T2") as refused:
        await sandbox.start()
    assert refused.value.fix
    await sandbox.stop()


async def test_without_a_sandbox_nothing_starts_unless_a_person_allows_it() -> None:
    with pytest.raises(ConfigError):
        await Sandbox(SandboxConfig(min_tier=Tier.T0, highest_tier=Tier.T0)).start()


@pytest.mark.skipif(bool(needs_root()), reason=needs_root())
def test_an_ordinary_user_gets_namespaces_through_a_user_namespace() -> None:
    said = reported(as_user([]), "T4")
    powers = said["powers"]
    assert (powers["tier"], powers["user_namespace"], powers["memory_bound"]) == (Tier.T3, True, "process")
    assert {"user_namespace", "private_root", "quota_inodes"} <= held(powers["probes"])
    assert not {"root_namespaces", "other_user", "cgroup_memory"} & held(powers["probes"])
    assert [probe for probe in said["self_test"] if not probe["held"]] == []


@pytest.mark.skipif(bool(needs_root()), reason=needs_root())
def test_gvisor_is_known_by_its_behaviour_and_holds() -> None:
    runsc = _runsc()
    if not runsc:
        pytest.skip("there is no runsc here (make k8s-tools)")
    said = reported([runsc, "--rootless=false", "--network=none", "do"], "T4")
    powers = said["powers"]
    assert (powers["tier"], powers["kernel"]) == (Tier.T4, "gvisor")
    assert "landlock_files" not in held(powers["probes"])
    assert [probe for probe in said["self_test"] if not probe["held"]] == []


def _runsc() -> str:
    built = sorted(Path("~/.cache/areal/k8s").expanduser().glob("*/bin/runsc"))
    return shutil.which("runsc") or (str(built[-1]) if built else "")


def test_probing_leaves_nothing_behind() -> None:
    before, segments = _belongings(), _shared_memory()
    probing.probe()
    assert _belongings() == before
    for _ in range(100):  # others may be probing now
        if _shared_memory() <= segments:
            return
        time.sleep(0.05)
    raise AssertionError(f"shared memory was left: {_shared_memory() - segments}")


def _belongings() -> tuple[set[str], list[str], set[str]]:
    """Children, mounts where acts mount, descriptors."""
    me = str(os.getpid())
    children = set(Path(f"/proc/{me}/task/{me}/children").read_text().split())
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mounts = [point for point in points if point in ("/", "/proc", *acts.STAGES)]
    return children, mounts, set(os.listdir("/proc/self/fd"))


def _shared_memory() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_kata_is_believed_only_on_top_of_a_tier_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probing.KERNEL_VARIABLE, "kata")
    powers = probing.probe()
    assert (powers.tier, powers.kernel) == (Tier.T4, "kata")
    assert powers.base in (Tier.T2, Tier.T3)
    assert probing.probe(Tier.T2).tier is Tier.T2


def test_an_act_that_hangs_crashes_or_lies_did_not_hold() -> None:
    def hangs(outside: acts.Outside) -> str:
        signal.pause()
        return "never"

    def crashes(outside: acts.Outside) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    def fails(outside: acts.Outside) -> str:
        raise acts.NotHeld("it went through")

    found = probing.ask(acts.Outside(os.getpid(), "", 0, 0, ""), {"hangs": hangs, "crashes": crashes, "fails": fails})
    assert [probe.held for probe in found] == [False, False, False]
    assert "no answer" in found[0].detail or "answer" in found[0].detail
    assert found[2].detail == "it went through"
