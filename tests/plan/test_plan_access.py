"""Tokens by role: each caller on each method of each server, on real servers; and the files that tokens lie in."""

from __future__ import annotations

import contextlib
import importlib
import json
import pkgutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import areal.v1
import grpc
import pytest
from areal.errors import ConfigError
from areal.method_access import digest
from areal.net.channel import connect
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan.access import access_of, callers, may_call, session_key_of, token_of
from areal.plan.callers import Outsider
from areal.plan.cluster_names import Role
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import spec_of
from areal.plan.write import write_run
from support.cluster_jobs import quickstart_wanted

BOXES = {"CreateBox", "RunInBox", "ReadBoxFile", "WriteBoxFile", "RenewBox", "CloseBox", "HoldBoxes", "CountBoxes"}
SCORES = {"worker": {"Reward/Score"}}
OPENS: dict[Role, dict[str, set[str]]] = {  # written by hand: a wider table of callers must fail here
    Role.CONTROLLER: {
        "worker": {"Rollout/Work"},
        "generation": {"Rollout/Serve"},
        "trainer": {
            f"Rollout/{name}"
            for name in ("Train", "AttachTrainer", "AdvanceTrainer", "PublishWeights", "ProposeTombstone")
        },
        "operator": {"Rollout/GetRolloutStatus", "Rollout/SetHotFields"},
    },
    Role.GENERATION: {"worker": {"Generation/Generate"}, "generation": {"VolumeFiles/ReadFile"}},
    Role.WEIGHTS: {"generation": {"VolumeFiles/ListFiles", "VolumeFiles/ReadFile"}},
    Role.ARCHIVE: {},
    Role.GATEWAY: {"worker": {"Gateway/Drive"}},
    Role.REWARD: SCORES,
    Role.REWARD_CUSTOM: SCORES,
    Role.REWARD_MODEL: SCORES,
    Role.BOXES: {"worker": {f"Boxes/{name}" for name in BOXES}},
    Role.WORKER: {},
    Role.TRAINER: {"generation": {"WeightGroup/Join"}, "operator": {"TrainerControl/GetTrainerStatus"}},
}
OPERATOR = {
    "Launcher/GetChildStatus", "Launcher/RestartChild", "Launcher/DrainChild", "Waits/ListWaits",
    "Progress/GetProgress", "GenerationControl/GetAgentStatus", "GenerationControl/DrainAgent",
}  # fmt: skip
STANDALONE = "Sandbox"  # a service of its own, with one token: no role of a job serves it


@dataclass(frozen=True)
class Method:
    """One method of a generated descriptor."""

    service: str
    name: str
    streams: tuple[bool, bool]

    @property
    def short(self) -> str:
        return f"{self.service}/{self.name}"

    @property
    def path(self) -> str:
        return f"/areal.v1.{self.short}"

    @property
    def kind(self) -> str:
        return "_".join("stream" if streams else "unary" for streams in self.streams)


def methods() -> Iterator[Method]:
    for module in pkgutil.iter_modules(areal.v1.__path__):
        if module.name.endswith("_pb2"):
            file: Any = importlib.import_module(f"areal.v1.{module.name}").DESCRIPTOR
            for name, service in file.services_by_name.items():
                for one in service.methods:
                    yield Method(name, one.name, (one.client_streaming, one.server_streaming))


METHODS = tuple(methods())


def wanted(callee: Role, caller: str) -> set[str]:
    return OPENS[callee].get(caller, set()) | (OPERATOR if caller == "operator" else set())


def handler_of(method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    """Answers nothing, at once."""

    async def one(_request: Any, _context: Any) -> bytes:
        return b""

    async def many(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        yield b""

    make = getattr(grpc, f"{method.kind}_rpc_method_handler")
    made: grpc.RpcMethodHandler[Any, Any] = make(
        many if method.streams[1] else one, request_deserializer=bytes, response_serializer=bytes
    )
    return made


@asynccontextmanager
async def served(job: ResolvedJob, callee: Role) -> AsyncIterator[str]:
    """A server with the role's access that has every method there is."""
    server = GrpcServer(callee, access_of(job, callee), waits=WaitRegistry(callee), progress=ProgressCounter())
    for service in {method.service for method in METHODS} - {"Waits", "Progress"}:
        name = f"areal.v1.{service}"
        table = {method.name: handler_of(method) for method in METHODS if method.service == service}
        handlers = grpc.method_handlers_generic_handler(name, table)
        server.add(lambda made, on: on.add_generic_rpc_handlers((made,)), handlers, name)
    port = await server.start(0)
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def code_of(channel: grpc.aio.Channel, method: Method) -> tuple[grpc.StatusCode, str]:
    """How one call ends. A stream sends nothing: a message that meets the end of its call would be another error."""
    call = getattr(channel, method.kind)(method.path)(*([] if method.streams[0] else [b""]), timeout=20)
    with contextlib.suppress(grpc.aio.AioRpcError):
        if method.streams[1]:
            assert await call.read() == b""
            assert await call.read() == grpc.aio.EOF
        else:
            await call
    return await call.code(), await call.details() or ""


@pytest.fixture
def job(tmp_path: Path) -> ResolvedJob:
    wanted = quickstart_wanted().resolved
    return write_run(wanted.model_copy(update={"run_dir": tmp_path / "run", "access_dir": None, **_LOCAL}))


_LOCAL: dict[str, Any] = {"recipe_path": None, "redis_users": {}}


@pytest.fixture(autouse=True)
def without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("areal.plan.write._write_redis", lambda resolved: None)


@pytest.mark.component
@pytest.mark.parametrize("callee", OPENS)
async def test_each_token_opens_what_the_table_says_and_nothing_else(job: ResolvedJob, callee: Role) -> None:
    async with served(job, callee) as address:
        for token in ("nobody's", digest(token_of(job, Role.TRAINER))):
            async with connect(address, token) as channel:
                codes = {(await code_of(channel, method))[0] for method in METHODS}
                assert codes == {grpc.StatusCode.UNAUTHENTICATED}
        async with grpc.aio.insecure_channel(address) as channel:
            assert {(await code_of(channel, method))[0] for method in METHODS} == {grpc.StatusCode.UNAUTHENTICATED}
        for caller in callers():
            opened = set()
            who: Any = caller
            async with connect(address, token_of(job, who)) as channel:
                for method in METHODS:
                    code, details = await code_of(channel, method)
                    assert code in (grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED), (caller, method.short, code)
                    if code is grpc.StatusCode.OK:
                        opened.add(method.short)
                    else:
                        assert caller in details, "it says whose token it is"
                        assert method.short in details, "and what that doesn't open"
            assert opened == wanted(callee, caller), caller


def test_every_method_is_opened_by_somebody_s_token() -> None:
    opened = {path for callee in OPENS for paths in may_call(callee).values() for path in paths}
    known = {method.path for method in METHODS if method.service != STANDALONE}
    assert known - opened == set(), "a row in areal.plan.access says who may call it"
    assert {path for path in opened - known if path.startswith("/areal.v1.")} == set(), "no such method"
    assert set(OPENS) == {role for role in Role if spec_of(role).supervised and role is not Role.REDIS}


def test_a_worker_s_token_is_a_recipe_s() -> None:
    opened = {path for callee in Role for path in may_call(callee).get("worker", ())}
    services = {path.split("/")[1].removeprefix("areal.v1.") for path in opened}
    assert services == {"Rollout", "Generation", "Reward", "Boxes", "Gateway"}
    assert {path for path in opened if "Rollout" in path} == {"/areal.v1.Rollout/Work"}


def test_a_job_of_an_older_version_goes_on_with_its_one_token(job: ResolvedJob, tmp_path: Path) -> None:
    old = job.model_copy(update={"access_dir": tmp_path / "old"})
    old.access.mkdir()
    with pytest.raises(ConfigError, match="digests"):
        access_of(old, Role.CONTROLLER)
    with pytest.raises(ConfigError, match=r"token\.worker"):
        token_of(old, Role.WORKER)
    old.token_path.write_text("one\n")
    assert {token_of(old, Role.WORKER), token_of(old, Outsider.OPERATOR), session_key_of(old)} == {"one"}
    headers = {"authorization": "Bearer one"}
    assert access_of(old, Role.CONTROLLER).refusal("/areal.v1.Rollout/Work", headers) is None
    assert access_of(old, Role.CONTROLLER).refusal("/areal.v1.Rollout/Work", {}) is not None


def test_a_resumed_run_of_an_older_version_gets_tokens_and_its_one_token_opens_nothing(
    job: ResolvedJob, tmp_path: Path
) -> None:
    older = job.model_copy(update={"run_dir": tmp_path / "older"})
    older.run_dir.mkdir()
    older.layout.token.write_text("one")
    write_run(older)
    access = access_of(older, Role.CONTROLLER)
    assert "one" not in {token_of(older, Role.WORKER), token_of(older, Outsider.OPERATOR), session_key_of(older)}
    for method in METHODS:
        assert access.refusal(method.path, {"authorization": "Bearer one"}) is not None
    digests = json.loads((older.access / "digests.json").read_text())
    assert digests["worker"] == digest(token_of(older, Role.WORKER))
    assert set(digests) == set(callers()) == {"generation", "operator", "trainer", "worker"}


@pytest.mark.parametrize("text", ["", "[]", "{", "1"])
def test_digests_that_are_damaged_let_nobody_in(job: ResolvedJob, text: str) -> None:
    job.layout.token.write_text("one")
    (job.access / "digests.json").write_text(text)
    with pytest.raises(ConfigError, match=r"digests\.json"):
        access_of(job, Role.CONTROLLER)
