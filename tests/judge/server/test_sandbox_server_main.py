"""The command `areal reward serve`: both faces, a clean end, refusals to start."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from areal.errors import ConfigError
from areal.net.channel import connect
from areal.reward.verifiers.math import MathVerifier
from areal.v1 import sandbox_pb2, sandbox_pb2_grpc
from areal_judge.judge.stack import StackSettings
from areal_judge.sandbox.values import Tier
from areal_judge.server.main import ServeOptions, serve

pytestmark = pytest.mark.component


async def test_the_command_serves_both_faces_and_leaves_nothing(tmp_path: Path, unused_tcp_port: int) -> None:
    token = tmp_path / "token"
    command = [sys.executable, "-m", "areal.cli.main", "reward", "serve", "--port", str(unused_tcp_port)]
    command += ["--http-port", "0", "--token-file", str(token), "--slots", "2"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    try:
        said = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        http = said.split("HTTP on ")[1].strip()
        assert token.stat().st_mode & 0o777 == 0o600
        bearer = token.read_text().strip()
        suite = sandbox_pb2.Suite(json=b'{"kind": "stdio", "cases": [{"stdin": "", "expected": "1"}]}')
        request = sandbox_pb2.JudgeRequest(program=sandbox_pb2.Program(source="print(1)"), suite=suite)
        async with connect(f"127.0.0.1:{unused_tcp_port}", bearer) as channel:
            result = await sandbox_pb2_grpc.SandboxStub(channel).Judge(request, timeout=60)
        assert (result.score, result.status) == (1.0, sandbox_pb2.SANDBOX_STATUS_PASSED)
        async with httpx.AsyncClient(base_url=http, headers={"Authorization": f"Bearer {bearer}"}) as face:
            assert (await face.get("/readyz")).status_code == 200
            reply = await face.post("/v1/execute", json={"program": {"source": "print(6 * 7)"}}, timeout=30)
            assert base64.b64decode(reply.json()["stdout"]) == b"42\n"
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
    finally:
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 60)
    assert code == 143
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


@pytest.mark.parametrize(("options", "message"), [
    (ServeOptions(stack=StackSettings(min_tier=Tier.T0)), "without a sandbox"),
    (ServeOptions(stack=StackSettings(Tier.T3, highest_tier=Tier.T2, languages=("python",))), "reaches tier T2"),
    (ServeOptions(token_file=Path("/dev/null")), "is empty"),
])  # fmt: skip
async def test_a_service_refuses_to_start_where_it_can_not_promise_what_is_asked(
    options: ServeOptions, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        await serve(options, lambda serving: None, lambda waits: MathVerifier("answer", waits=waits))
    assert refused.value.fix
