"""The HTTP face over a scripted judge: answers, refusals, limits of bodies, clients that disconnect."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from areal.net.http_server import HttpServer
from areal.observe.waits import ProgressCounter
from areal_judge.judge.dispatch.meters import Readiness, SelfTestFinding
from areal_judge.judge.dispatch.scheduler import Bounds
from areal_judge.server.handlers import SandboxHandlers
from areal_judge.server.http import create_app
from support.scripted_judge import ScriptedJudge, dispatcher_of

pytestmark = pytest.mark.component
TOKEN = "a-token"
SUITE = {"kind": "stdio", "cases": [{"stdin": "", "expected": "1\n"}]}
ASSERTS = {"kind": "assert", "entry_point": "f", "test": "assert f()"}


def _lone(stdin: str, expected: str) -> dict[str, Any]:
    """A suite with half of a surrogate pair in its texts."""
    return {"json": {"kind": "stdio", "cases": [{"stdin": stdin, "expected": expected}]}}


@dataclass
class Face:
    client: httpx.AsyncClient
    judge: ScriptedJudge
    readiness: Readiness
    port: int
    passes: bool = True

    async def judged(self, source: str, status: int = 200, **more: Any) -> dict[str, Any]:
        """Asks for a judgement; asserts on the HTTP status."""
        body = {"program": {"source": source}, "suite": {"json": SUITE}} | more
        body = {key: value for key, value in body.items() if value is not None}
        content = json.dumps(body)  # httpx would refuse to send half of a surrogate pair
        reply = await self.client.post("/v1/judge", content=content)
        assert reply.status_code == status, reply.text
        self.headers = reply.headers
        return dict(reply.json())


@pytest.fixture
async def face() -> AsyncIterator[Face]:
    judge = ScriptedJudge()
    dispatcher = dispatcher_of(judge, slots=1, bounds=Bounds(items=2), wall=time.time)

    async def self_test() -> SelfTestFinding:
        return SelfTestFinding(made.passes, "1 of 1 held" if made.passes else "an attack won")

    async def changed(ready: bool) -> None:
        pass

    readiness = Readiness(self_test, changed)
    handlers = SandboxHandlers(dispatcher, readiness, ProgressCounter())
    server = HttpServer(create_app(handlers, readiness, TOKEN, max_body_bytes=1 << 20), "127.0.0.1", 0, grace_s=5)
    port = server.start()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
        made = Face(client, judge, readiness, port)
        yield made
    await dispatcher.close()
    await server.stop()


async def test_a_program_is_judged(face: Face) -> None:
    reply = await face.judged("pass", request_id="r1")
    assert (reply["status"], reply["score"], reply["request_id"], reply["tier"]) == (
        "SANDBOX_STATUS_PASSED", 1.0, "r1", "SANDBOX_TIER_T3",
    )  # fmt: skip
    assert reply["cases_passed"] == reply["cases_total"] == 1
    assert (await face.judged("wrong"))["score"] == 0.0


async def test_curls_default_content_type_is_taken_for_json(face: Face) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"program": {"source": "pass"}, "suite": {"json": SUITE}})
    reply = await face.client.post("/v1/judge", content=body, headers=form)
    assert reply.json()["status"] == "SANDBOX_STATUS_PASSED"


@pytest.mark.parametrize(("source", "more", "status", "name"), [
    ("sandbox-error", {}, 503, "SANDBOX_ERROR"),
    ("hang", {"deadline_unix_ms": 200}, 504, "DEADLINE_EXCEEDED"),
    ("pass", {"min_tier": "SANDBOX_TIER_T4"}, 412, "REJECTED_TIER"),
    ("pass", {"program": {"source": "pass", "language": "cobol"}}, 412, "REJECTED_TIER"),
    ("pass", {"suite": {"json": {"kind": "stdio", "cases": []}}}, 422, "GOLD_ERROR"),
    ("pass", {"suite": None, "suite_digest": "ab"}, 404, "INVALID_REQUEST"),
    ("pass", {"limits": {"processes": 1 << 20}}, 400, "INVALID_REQUEST"),
    ("pass", {"limits": {"memory_bytes": 1 << 20}}, 400, "INVALID_REQUEST"),
    ("pass", {"suite": _lone("\ud800", "")}, 422, "GOLD_ERROR"),
    ("pass", {"suite": _lone("", "\udfff")}, 422, "GOLD_ERROR"),
    ("pass", {"suite": {"json": ASSERTS | {"test": "assert f('\ud800')"}}}, 422, "GOLD_ERROR"),
])  # fmt: skip
async def test_what_was_not_judged_has_no_score_and_is_no_200(
    face: Face, source: str, more: dict[str, Any], status: int, name: str
) -> None:
    if "deadline_unix_ms" in more:
        more = {"deadline_unix_ms": int(time.time() * 1000) + more["deadline_unix_ms"]}
    reply = await face.judged(source, status, **more)
    assert (reply["status"], "score" in reply) == (f"SANDBOX_STATUS_{name}", False)
    assert reply["message"]


async def test_overload_is_429_with_a_time_to_come_back(face: Face) -> None:
    asking = [asyncio.create_task(face.judged(f"sleep 0.3 then pass {n}")) for n in range(3)]
    await asyncio.sleep(0.15)
    reply = await face.judged("pass", 429)
    assert (reply["status"], "score" in reply) == ("SANDBOX_STATUS_REJECTED_OVERLOAD", False)
    assert int(face.headers["retry-after"]) >= 1
    assert [each["score"] for each in await asyncio.gather(*asking)] == [1.0] * 3


@pytest.mark.parametrize(("body", "path"), [
    ({"langage": "python"}, "langage: there is no such field"),
    ({"limits": {"wall_s": 1}}, "limits.wall_s: there is no such field"),
    ({"limits": {"wall_ms": -1}}, "limits.wall_ms: Value out of range"),
    ({"priority": "URGENT"}, "priority: Invalid enum value URGENT"),
    ({"program": {"source": "\ud800"}}, "program.source: Unpaired surrogate"),
    ([], "no JSON object"),
])  # fmt: skip
async def test_a_malformed_request_says_which_field(face: Face, body: Any, path: str) -> None:
    reply = await face.client.post("/v1/judge", content=json.dumps(body))
    assert reply.status_code == 422
    assert path in reply.json()["error"]


@pytest.mark.parametrize("body", [b"{source: pass}", b"\xff", b'{"total_ms": NaN}', b"[" * 100_000])
async def test_a_body_that_is_no_json_is_refused(face: Face, body: bytes) -> None:
    reply = await face.client.post("/v1/judge", content=body)
    assert reply.status_code == 422
    assert "not JSON" in reply.json()["error"]


async def test_a_suite_is_uploaded_once(face: Face) -> None:
    digest = (await face.client.post("/v1/put_suite", json={"json": SUITE})).json()["digest"]
    reply = await face.judged("pass", suite=None, suite_digest=digest)
    assert (reply["status"], reply["suite_digest"]) == ("SANDBOX_STATUS_PASSED", digest)
    refused = await face.client.post("/v1/put_suite", json={"json": {"kind": "stdio", "cases": []}})
    assert (refused.status_code, "every program would pass" in refused.json()["error"]) == (422, True)


async def test_readiness_is_the_self_tests(face: Face) -> None:
    assert (await face.client.get("/readyz")).status_code == 503
    await face.readiness.check()
    ready = await face.client.get("/readyz")
    assert (ready.status_code, ready.json()["self_test"]) == (200, "1 of 1 held")
    face.passes = False
    await face.readiness.check()
    failed = await face.client.get("/readyz")
    assert (failed.status_code, failed.json()["self_test"]) == (503, "an attack won")
    assert (await face.client.get("/healthz")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/judge", "/v1/judge_batch", "/v1/capabilities"])
@pytest.mark.parametrize("bearer", ["", "Bearer other"])
async def test_without_the_token_nothing_but_probes_answers(face: Face, path: str, bearer: str) -> None:
    headers = {"Authorization": bearer}
    reply = await face.client.post(path, headers=headers)
    assert reply.status_code == 401
    assert (await face.client.get("/healthz", headers=headers)).status_code == 200


async def test_a_body_that_is_too_long_is_not_read(face: Face) -> None:
    reply = await face.client.post("/v1/judge", json={"program": {"source": "x" * (1 << 20)}})
    assert reply.status_code == 413

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * (64 << 10)

    reply = await face.client.post("/v1/judge", content=pieces())
    assert reply.status_code == 413
    assert face.judge.asked == []


async def test_a_client_that_disconnects_cancels_its_run(face: Face) -> None:
    body = {"program": {"source": "hang"}, "suite": {"json": SUITE}}
    with pytest.raises(httpx.ReadTimeout):
        await face.client.post("/v1/judge", json=body, timeout=0.5)
    async with asyncio.timeout(60):
        await face.judge.a_kill.wait()
    assert (await face.judged("pass"))["status"] == "SANDBOX_STATUS_PASSED"


async def test_a_stream_that_is_dropped_leaves_nothing_running(face: Face) -> None:
    line = json.dumps({"program": {"source": "hang"}, "suite": {"json": SUITE}})
    with pytest.raises(httpx.ReadTimeout):
        await face.client.post("/v1/judge_batch", content=f"{line}\n{line}", timeout=0.5)
    async with asyncio.timeout(60):
        await face.judge.a_kill.wait()
    assert (await face.judged("pass"))["status"] == "SANDBOX_STATUS_PASSED"
