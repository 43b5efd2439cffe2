"""Languages of this machine × RPCs that run a program × both transports, with the real sandbox behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from areal.net.channel import connect
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc
from google.protobuf import json_format
from google.protobuf.message import Message
from judge.languages.programs import BROKEN, PROGRAMS

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
STDIN, STDOUT = b"sum 1 2 3 -10 1000000\n", b"999996\n"
SUITE = pb.Suite(
    json=json.dumps({"kind": "stdio", "cases": [{"stdin": STDIN.decode(), "expected": STDOUT.decode()}]}).encode()
)
LANDING = [("python", "over_grpc"), ("cpp", "over_grpc"), ("python", "over_http")]  # the others each night
REQUIRED = ("python", "c", "cpp", "javascript", "bash")  # of the default image: never skipped
PATIENCE_S = 120


@dataclass(frozen=True)
class Served:
    """The running service: a stub and a client of its two faces, and the languages that it tells."""

    stub: rpc.SandboxStub
    client: httpx.AsyncClient
    languages: frozenset[str]

    async def over_grpc(self, method: str, request: Message) -> Any:
        call = getattr(self.stub, method)
        if method in ("ExecuteStream", "JudgeBatch"):
            (answer,) = [each async for each in call(iter([request]), timeout=PATIENCE_S)]
            return answer
        return await call(request, timeout=PATIENCE_S)

    async def over_http(self, method: str, request: Message) -> Any:
        path = {"Execute": "execute", "ExecuteStream": "execute_stream", "Judge": "judge", "JudgeBatch": "judge_batch"}
        reply = await self.client.post(f"/v1/{path[method]}", content=json_format.MessageToJson(request, indent=None))
        assert reply.status_code == 200, reply.text
        return json_format.Parse(reply.text, pb.JudgeResult() if "Judge" in method else pb.ExecuteResult())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    token = tmp_path_factory.mktemp("served") / "token"
    command = [sys.executable, "-m", "areal.cli.main", "reward", "serve", "--port", "0", "--http-port", "0"]
    process = await asyncio.create_subprocess_exec(
        *command, "--token-file", str(token), "--slots", "2", stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    assert process.stdout is not None
    try:
        said = (await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)).decode()
        bearer = token.read_text().strip()
        grpc_address = said.split("gRPC on ")[1].split()[0].rstrip(",")
        headers = {"Authorization": f"Bearer {bearer}"}
        http_address = said.split("HTTP on ")[1].strip()
        async with (
            connect(grpc_address, bearer) as channel,
            httpx.AsyncClient(base_url=http_address, headers=headers, timeout=PATIENCE_S) as client,
        ):
            stub = rpc.SandboxStub(channel)
            offered = await stub.Capabilities(pb.CapabilitiesRequest(), timeout=PATIENCE_S)
            yield Served(stub, client, frozenset(runtime.language for runtime in offered.runtimes))
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 60)


@pytest.mark.parametrize(
    ("language", "transport"),
    [
        pytest.param(one, way, marks=() if (one, way) in LANDING else pytest.mark.nightly)
        for one in PROGRAMS
        for way in ("over_grpc", "over_http")
    ],
)
async def test_a_program_runs_and_is_judged_alike_however_it_comes(
    served: Served, language: str, transport: str
) -> None:
    if language not in served.languages:
        assert language not in REQUIRED
        pytest.skip(f"no {language} on this machine")
    ask = getattr(served, transport)
    right = pb.Program(language=language, source=PROGRAMS[language])
    for method in ("Execute", "ExecuteStream"):
        ended = await ask(method, pb.ExecuteRequest(program=right, stdin=STDIN))
        assert (ended.stdout, ended.stderr, ended.exit_code) == (STDOUT, b"", 0), ended
    for method in ("Judge", "JudgeBatch"):
        judged = await ask(method, pb.JudgeRequest(program=right, suite=SUITE))
        assert (judged.status, judged.score) == (pb.SANDBOX_STATUS_PASSED, 1.0), judged
    if language not in BROKEN:
        return
    source, word = BROKEN[language]
    for method in ("Judge", "JudgeBatch"):
        judged = await ask(method, pb.JudgeRequest(program=pb.Program(language=language, source=source), suite=SUITE))
        assert (judged.status, judged.score) == (pb.SANDBOX_STATUS_COMPILE_ERROR, 0.0), judged
        assert word in str(judged)
