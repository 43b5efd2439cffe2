"""What roles say reaches the operator, and what it tells them reaches the roles: over real gRPC, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan.cluster_names import GRPC_PORT, LAUNCHER_PORT, Role, service_host
from areal.plan.resolved import ResolvedJob
from areal.processes.core import ChildPhase
from areal.processes.service import SERVICE_NAME, LauncherService
from areal.tls import ENV_TLS_DIR, TlsIdentity
from areal.v1 import generation_pb2 as generation
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from areal_operator.kube.resources import Key
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import StepEvidence
from areal_operator.operator.observed import Pod, Reports
from areal_operator.operator.reports import Asker, Poller, Targets, by_pod_ip, controller_report, news
from operator_values import NOW, admitted, controller, says, trainer
from support.certificates import authority, leaf, put
from support.scripted_child import GANG_MEMBER, ScriptedChild
from support.scripted_run import RunController, RunTrainer, ScriptedRun

KEY: Key = ("team", "digits")
TOKEN = "secret"
CONTROLLER = Pod("digits-controller-x", "c0", Role.CONTROLLER, ip="10.0.0.9", running=True)


class Roles:
    """A controller and a trainer of one run, each behind one loopback port; and where an operator finds them."""

    def __init__(self) -> None:
        self.run = ScriptedRun(*KEY)
        resolved: ResolvedJob = admitted(trainer={"replicas": 1}).resolved
        self.run.begins(resolved)
        self.child = self.run.trainers[0] = ScriptedChild(
            "trainer", GANG_MEMBER, on_start=lambda epoch: self.run.started(0, epoch),
            on_drain=lambda: self.run.draining(NOW),
        )  # fmt: skip
        self.ports: dict[str, int] = {}
        self.dialled: list[tuple[str, int]] = []

    def dial(self, namespace: str, job: str, pod: Pod, port: int) -> tuple[str, int]:
        assert (namespace, job) == KEY
        self.dialled.append((pod.uid, port))
        return "127.0.0.1", self.ports.get(pod.uid, 9)


@asynccontextmanager
async def served(token: str = TOKEN) -> AsyncIterator[Roles]:
    roles = Roles()
    roles.child.start()
    servers = []
    for uid, add, servicer in (
        ("c0", rollout_grpc.add_RolloutServicer_to_server, RunController(roles.run)),
        ("t0", operations_grpc.add_TrainerControlServicer_to_server, RunTrainer(roles.run)),
    ):
        server = GrpcServer(uid, token, waits=WaitRegistry(uid), progress=ProgressCounter())
        server.add(add, servicer, "areal.v1.Of")
        if uid == "t0":
            launcher: Any = LauncherService({"trainer": roles.child})  # type: ignore[dict-item]
            server.add(operations_grpc.add_LauncherServicer_to_server, launcher, SERVICE_NAME)
        roles.ports[uid] = await server.start(0)
        servers.append(server)
    try:
        yield roles
    finally:
        for server in servers:
            await server.stop(0)


TARGETS = Targets(CONTROLLER, (trainer(0),), TOKEN)
component = pytest.mark.component


@component
async def test_a_round_asks_everybody_at_their_own_port() -> None:
    async with served() as roles:
        roles.run.step, roles.run.checkpoint_step, roles.run.checkpoint_at = 7, 5, NOW - 20
        roles.run.epochs, roles.run.restored = [1, 4], 5
        roles.run.stalled = "no rows are left"
        asker = Asker(roles.dial, lambda: NOW)
        reports = await asker.round(KEY, TARGETS, Reports())
        await asker.forget(KEY)
    assert reports.controller is not None
    assert (reports.controller.hot, reports.controller.step) == (HotFields(12, 1, 8, 1), 7)
    assert (reports.controller.policy_version, reports.controller.oldest_served_version) == (7, 6)
    assert reports.controller.stalled == "no rows are left"
    assert reports.trainer is not None
    assert (reports.trainer.step, reports.trainer.checkpoint_step, reports.trainer.checkpoint_at) == (7, 5, NOW - 20)
    assert reports.trainer.evidence == StepEvidence(4, f"{2:016x}", 2)
    assert reports.at == NOW
    launcher = reports.launchers["t0"]
    assert (launcher.phase, launcher.epoch, launcher.awaits_epoch, launcher.at) == (ChildPhase.IDLE, 0, True, NOW)
    assert set(roles.dialled) == {("c0", GRPC_PORT), ("t0", GRPC_PORT), ("t0", LAUNCHER_PORT)}


@component
async def test_an_epoch_a_drain_and_hot_fields_reach_their_roles() -> None:
    async with served() as roles:
        asker = Asker(roles.dial, lambda: NOW)
        assert await asker.restart(KEY, trainer(0), TOKEN, 3)
        assert await asker.restart(KEY, trainer(0), TOKEN, 3)
        assert not await asker.restart(KEY, trainer(0), TOKEN, 2)
        assert roles.run.epochs == [3]
        assert await asker.set_hot(KEY, CONTROLLER, TOKEN, HotFields(40, 2, 16))
        assert roles.run.hot.max_steps == 40
        assert await asker.drain(KEY, trainer(0), TOKEN, 30.0)
        reports = await asker.round(KEY, TARGETS, Reports())
        await asker.forget(KEY)
    assert roles.run.drains == 1
    assert reports.launchers["t0"].phase is ChildPhase.STOPPED
    assert reports.controller is not None
    assert reports.controller.hot == HotFields(40, 2, 16)


@component
async def test_a_step_is_known_since_it_was_heard_of_first() -> None:
    """However often it is named again; a new process that names it has made it anew."""
    clock = [NOW]
    async with served() as roles:
        asker = Asker(roles.dial, lambda: clock[0])
        roles.run.step, roles.run.epochs, reports, heard = 7, [1], Reports(), []
        for change in ({}, {}, {"step": 8}, {"epochs": [1, 2]}):
            for name, value in change.items():
                setattr(roles.run, name, value)
            reports = await asker.round(KEY, TARGETS, reports)
            heard.append([each and each.since for each in (reports.trainer, reports.controller)])
            clock[0] += 4
        await asker.forget(KEY)
    assert heard == [[NOW, NOW], [NOW, NOW], [NOW + 8, NOW + 8], [NOW + 12, NOW + 8]]


@component
async def test_who_does_not_answer_keeps_the_last_report_and_its_age() -> None:
    async with served() as roles:
        asker = Asker(roles.dial, lambda: NOW)
        first = await asker.round(KEY, TARGETS, Reports())
    later = Asker(roles.dial, lambda: NOW + 60)
    second = await later.round(KEY, TARGETS, first)
    assert second == replace(first, at=NOW + 60)
    assert second.launchers["t0"].at == NOW
    assert not await later.restart(KEY, trainer(0), TOKEN, 9)
    gone = await later.round(KEY, Targets(None, (), TOKEN), second)
    assert gone == Reports(at=NOW + 60)
    await asker.forget(KEY)
    await later.forget(KEY)


@component
async def test_with_tls_it_shows_its_certificate_and_expects_the_names_of_the_role_it_dials(
    tmp_path, monkeypatch
) -> None:
    root = authority()
    names = [service_host(KEY[1], KEY[0], role) for role in (Role.CONTROLLER, Role.TRAINER)]
    monkeypatch.setenv(ENV_TLS_DIR, str(put(tmp_path / "tls", leaf(root, names), root)))
    (crt, key), (stranger_crt, stranger_key) = leaf(root, ["operator"]), leaf(authority())
    trusted = root[0].encode()
    own = TlsIdentity(trusted, crt.encode(), key.encode())
    async with served() as roles:
        asker = Asker(roles.dial, lambda: NOW)
        for shown in (None, TlsIdentity(trusted, stranger_crt.encode(), stranger_key.encode())):
            asker.identities[KEY] = shown
            refused = await asker.round(KEY, TARGETS, Reports())
            assert (refused.controller, refused.trainer, refused.launchers) == (None, None, {})
            await asker.forget(KEY)
        asker.identities[KEY] = own
        reports = await asker.round(KEY, TARGETS, Reports())
        assert reports.controller is not None
        assert reports.trainer is not None
        put(tmp_path / "tls", leaf(root, ["another.a.svc"]), root)
        await asker.forget(KEY)
        asker.identities[KEY] = own
        assert await asker.round(KEY, TARGETS, Reports()) == Reports(at=NOW)
        await asker.forget(KEY)


@component
async def test_another_jobs_token_opens_nothing() -> None:
    async with served(token="another") as roles:
        asker = Asker(roles.dial, lambda: NOW)
        assert await asker.round(KEY, TARGETS, Reports()) == Reports(at=NOW)
        assert not await asker.restart(KEY, trainer(0), TOKEN, 1)
        await asker.forget(KEY)
    assert roles.run.epochs == []


class Rounds:
    """A poller whose time a test turns."""

    def __init__(self, asker: Any) -> None:
        self.changed: list[Key] = []
        self._turn = asyncio.Event()
        self._done = asyncio.Event()
        self.poller = Poller(asker, self.changed.append, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self._done.set()
        await self._turn.wait()
        self._turn.clear()

    async def one(self) -> None:
        """Let one round pass."""
        self._turn.set()
        self._done.clear()
        await self._done.wait()


class ScriptedAsker:
    """Answers with what it is told to."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.asked = 0
        self.forgotten: list[Key] = []
        self.trouble: Exception | None = None
        self.heard: list[tuple[str, int]] = []
        self.black_holes: set[str] = set()
        self.identities: dict[Key, object] = {}

    async def restart(self, key: Key, pod: Pod, token: str, epoch: int) -> bool:
        self.heard.append((pod.uid, epoch))
        if pod.uid in self.black_holes:
            await asyncio.Event().wait()
        return True

    async def round(self, key: Key, targets: Targets, last: Reports) -> Reports:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return self.reports

    async def keep_only(self, key: Key, targets: Targets) -> None:
        pass

    async def forget(self, key: Key) -> None:
        self.forgotten.append(key)


async def test_a_change_is_told_once_and_a_round_without_one_is_not() -> None:
    asker = ScriptedAsker()
    rounds = Rounds(asker)
    rounds.poller.follow(KEY, TARGETS)
    await rounds.one()
    assert rounds.changed == []
    asker.reports = Reports(launchers={"t0": says(ChildPhase.READY)})
    await rounds.one()
    asker.reports = Reports(launchers={"t0": says(ChildPhase.READY, at=NOW + 2)})
    await rounds.one()
    assert rounds.changed == [KEY]
    assert rounds.poller.latest(KEY).launchers["t0"].at == NOW + 2
    await rounds.poller.close()


async def test_a_round_that_breaks_does_not_end_the_rounds() -> None:
    asker = ScriptedAsker()
    rounds = Rounds(asker)
    asker.trouble = RuntimeError("odd")
    rounds.poller.follow(KEY, TARGETS)
    await rounds.one()
    asker.trouble = None
    asker.reports = Reports(controller=controller())
    await rounds.one()
    assert rounds.changed == [KEY]
    await rounds.poller.close()


async def test_a_forgotten_job_is_asked_nothing_and_told_nothing() -> None:
    asker = ScriptedAsker()
    rounds = Rounds(asker)
    rounds.poller.follow(KEY, TARGETS)
    await rounds.one()
    rounds.poller.forget(KEY)
    asked = asker.asked
    for _ in range(5):
        await asyncio.sleep(0)
    assert asker.asked == asked
    assert asker.forgotten == [KEY]
    assert rounds.poller.latest(KEY) == Reports()
    rounds.poller.restart(KEY, trainer(0), 1)
    rounds.poller.set_hot(KEY, HotFields(1, 1, 1))
    await asyncio.sleep(0)
    assert asker.heard == []
    await rounds.poller.close()


async def test_pods_that_never_answer_delay_nobody_and_are_told_once_at_a_time() -> None:
    asker = ScriptedAsker()
    rounds = Rounds(asker)
    other: Key = ("team", "other")
    asker.black_holes = {f"t{index}" for index in range(4)}
    for key in (KEY, other):
        rounds.poller.follow(key, TARGETS)
    for _ in range(3):
        for index in range(4):
            rounds.poller.restart(KEY, trainer(index), 1)
    rounds.poller.restart(other, trainer(5), 7)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asker.heard == [*((f"t{index}", 1) for index in range(4)), ("t5", 7)]
    rounds.poller.restart(other, trainer(5), 8)  # the one before is done
    rounds.poller.restart(KEY, trainer(0), 2)  # a newer epoch waits for no older order
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asker.heard[5:] == [("t5", 8), ("t0", 2)]
    await rounds.poller.close()


@pytest.mark.parametrize(
    ("before", "after", "matters"),
    [
        (Reports(), Reports(launchers={"t": says(ChildPhase.IDLE)}), True),
        (Reports(launchers={"t": says(ChildPhase.IDLE)}), Reports(launchers={"t": says(ChildPhase.IDLE, at=1)}), False),
        (Reports(controller=controller(5)), Reports(controller=controller(6)), True),
        (Reports(controller=controller(5)), Reports(controller=controller(5, at=1)), False),
        (Reports(controller=controller()), Reports(controller=controller(stalled="no rows")), True),
        (Reports(controller=controller(at=1), at=3), Reports(controller=controller(at=1), at=7), False),
        (Reports(controller=controller(at=1), at=7), Reports(controller=controller(at=1), at=9), True),
        (Reports(controller=controller(at=1), at=9), Reports(controller=controller(at=1), at=11), True),
        (Reports(controller=controller(at=1), at=11), Reports(controller=controller(at=13), at=13), True),
        (Reports(controller=controller()), Reports(controller=replace(controller(), ledger_silent_s=3)), False),
        (Reports(controller=controller()), Reports(controller=replace(controller(), ledger_silent_s=9)), True),
        (Reports(controller=controller()), Reports(controller=replace(controller(), unserved_s=3)), False),
        (Reports(controller=controller()), Reports(controller=replace(controller(), unserved_s=9)), True),
    ],
)
def test_only_what_a_decision_may_hang_on_is_news(before: Reports, after: Reports, matters: bool) -> None:
    assert news(before, after) is matters


def test_a_controller_that_has_served_nothing_yet_has_no_versions() -> None:
    answer = rollout.GetRolloutStatusResponse(fleet=[generation.ServerState(version=-1, live=True)])
    report = controller_report(answer, NOW)
    assert (report.policy_version, report.oldest_served_version, report.reward) == (None, None, None)
    assert report.wasted_share is None
    assert report.ledger_silent_s == 0
    assert controller_report(rollout.GetRolloutStatusResponse(ledger_silent_s=8.5), NOW).ledger_silent_s == 8.5
    said = rollout.GetRolloutStatusResponse(unserved="w waited", unserved_s=8.5, unserved_role="reward")
    unserved = controller_report(said, NOW)
    assert (unserved.unserved, unserved.unserved_s, unserved.unserved_role) == ("w waited", 8.5, "reward")
    fates = {"generated": 200, "served": 150, "lost": 2, "stale": 3, "aborted": 5}
    assert controller_report(rollout.GetRolloutStatusResponse(token_fates=fates), NOW).wasted_share == 0.05


def test_servers_that_the_controller_does_not_hear_are_known_with_the_time() -> None:
    def said(*live: bool) -> rollout.GetRolloutStatusResponse:
        states = [generation.ServerState(server_id=f"generation-{i}", live=one) for i, one in enumerate(live)]
        return rollout.GetRolloutStatusResponse(fleet=states)

    first = controller_report(said(True, False), NOW)
    assert (first.silent, first.unheard) == ({"generation-1": NOW}, frozenset())
    second = controller_report(said(False, False), NOW + 6, first)
    assert (second.silent, second.unheard) == ({"generation-0": NOW + 6, "generation-1": NOW}, frozenset())
    third = controller_report(said(False, False), NOW + 8, second)
    assert third.unheard == {"generation-1"}
    assert news(Reports(controller=second), Reports(controller=third))
    assert controller_report(said(True, True), NOW + 9, third).silent == {}


@pytest.mark.parametrize(("ip", "host"), [("10.1.2.3", "10.1.2.3"), ("fd00::7", "[fd00::7]")])
def test_a_pod_is_dialled_at_its_own_address(ip: str, host: str) -> None:
    assert by_pod_ip("team", "digits", trainer(0, ip=ip), 9001) == (host, 9001)
