"""Every RPC of the contract answers the same over gRPC and over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from areal.net.channel import connect
from areal.net.http_server import HttpServer
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.reward.verifiers.math import MathVerifier
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc
from areal_judge.judge.dispatch.meters import Readiness, SelfTestFinding
from areal_judge.server.handlers import SERVICE_NAME, SandboxHandlers, SandboxService
from areal_judge.server.http import calls_of, create_app
from google.protobuf import json_format
from google.protobuf.message import Message
from support.scripted_judge import ScriptedJudge, dispatcher_of

pytestmark = pytest.mark.component
TOKEN = "a-token"
SUITE = pb.Suite(json=json.dumps({"kind": "stdio", "cases": [{"stdin": "", "expected": "1"}]}).encode())
JUDGED = pb.JudgeRequest(request_id="j", program=pb.Program(source="wrong"), suite=SUITE)
RUN = pb.ExecuteRequest(request_id="e", program=pb.Program(source="pass"), stdin=b"\xff\x00", files={"a": b"1"})
MATH = pb.MathRequest(request_id="m", gold="5", completion="\\boxed{5}")
REQUESTS: dict[str, list[Message]] = {
    "Execute": [RUN],
    "ExecuteStream": [RUN, RUN],
    "Judge": [JUDGED],
    "JudgeBatch": [JUDGED, pb.JudgeRequest(request_id="j2", program=pb.Program(source="raise"), suite=SUITE)],
    "VerifyMath": [MATH],
    "VerifyMathBatch": [MATH, pb.MathRequest(request_id="m2", gold="", completion="5")],
    "PutSuite": [SUITE],
    "Capabilities": [pb.CapabilitiesRequest()],
    "Cancel": [pb.CancelRequest(request_id="nobody")],
}
METHODS = tuple(pb.DESCRIPTOR.services_by_name["Sandbox"].methods)


@dataclass
class Faces:
    stub: rpc.SandboxStub
    client: httpx.AsyncClient
    paths: dict[str, str]


@pytest.fixture
async def faces() -> AsyncIterator[Faces]:
    dispatcher = dispatcher_of(ScriptedJudge(), slots=2, wall=time.time)

    async def self_test() -> SelfTestFinding:
        return SelfTestFinding(True, "all held")

    async def changed(ready: bool) -> None:
        pass

    math, readiness, progress = MathVerifier("answer"), Readiness(self_test, changed), ProgressCounter()
    handlers = SandboxHandlers(dispatcher, readiness, progress, math)
    server = GrpcServer("reward", TOKEN, waits=WaitRegistry("reward"), progress=progress)
    server.add(rpc.add_SandboxServicer_to_server, SandboxService(handlers), SERVICE_NAME)
    port = await server.start(0)
    http = HttpServer(create_app(handlers, readiness, TOKEN), "127.0.0.1", 0, grace_s=5)
    address = f"http://127.0.0.1:{http.start()}"
    paths = dict(zip((method.name for method in METHODS), (call.path for call in calls_of(handlers)), strict=True))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        connect(f"127.0.0.1:{port}", TOKEN) as channel,
        httpx.AsyncClient(base_url=address, headers=headers, timeout=30) as client,
    ):
        yield Faces(rpc.SandboxStub(channel), client, paths)
    await http.stop()
    await math.stop()
    await dispatcher.close()
    await server.stop(0)


def told(document: dict[str, Any]) -> dict[str, Any]:
    """An answer without the times of its run."""
    return {name: value for name, value in document.items() if name not in ("timing", "elapsed_us")}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_both_faces_answer_alike(faces: Faces, method: Any) -> None:
    requests, call = REQUESTS[method.name], getattr(faces.stub, method.name)
    if method.server_streaming:
        ours = [each async for each in call(iter(requests), timeout=30)]
    else:
        ours = [await call(requests[0], timeout=30)]
    lines = "\n".join(json_format.MessageToJson(each, indent=None) for each in requests)
    reply = await faces.client.post(faces.paths[method.name], content=lines)
    assert reply.status_code == 200, reply.text
    theirs = [json_format.Parse(line, type(ours[0])()) for line in reply.text.splitlines()]

    def comparable(answers: list[Message]) -> list[dict[str, Any]]:
        documents = [told(json_format.MessageToDict(each, preserving_proto_field_name=True)) for each in answers]
        return sorted(documents, key=lambda each: str(each.get("request_id")))

    assert comparable(theirs) == comparable(ours)
