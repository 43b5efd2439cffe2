"""The Sandbox contract over loopback, with a scripted judge behind it: what callers see of every kind of fault."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from areal.net.channel import connect
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.reward.verifiers.math import MathVerifier
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc
from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.dispatch.meters import Readiness, SelfTestFinding
from areal_judge.judge.dispatch.scheduler import Bounds
from areal_judge.server.handlers import RETRY_AFTER, SERVICE_NAME, SandboxHandlers, SandboxService
from support.scripted_judge import ScriptedJudge, dispatcher_of

pytestmark = pytest.mark.component
TOKEN = "a-token"
DOCUMENT = {"kind": "stdio", "cases": [{"stdin": "", "expected": "1\n"}]}
SUITE = pb.Suite(format="native", json=json.dumps(DOCUMENT).encode())
EMPTY = pb.Suite(format="native", json=json.dumps({"kind": "stdio", "cases": []}).encode())


@dataclass
class Served:
    stub: rpc.SandboxStub
    judge: ScriptedJudge
    dispatcher: JudgeDispatcher
    port: int


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    judge = ScriptedJudge()
    dispatcher = dispatcher_of(judge, slots=1, bounds=Bounds(items=3), wall=time.time)

    async def self_test() -> SelfTestFinding:
        return SelfTestFinding(True, "all held")

    async def changed(ready: bool) -> None:
        await server.set_ready(ready)

    progress = ProgressCounter()
    server = GrpcServer("reward", TOKEN, waits=WaitRegistry("reward"), progress=progress)
    readiness = Readiness(self_test, changed)
    math = MathVerifier("answer")
    handlers = SandboxHandlers(dispatcher, readiness, progress, math)
    server.add(rpc.add_SandboxServicer_to_server, SandboxService(handlers), SERVICE_NAME)
    port = await server.start(0)
    channel = connect(f"127.0.0.1:{port}", TOKEN)
    yield Served(rpc.SandboxStub(channel), judge, dispatcher, port)
    await channel.close()
    await math.stop()
    await dispatcher.close()
    await server.stop(0)


def request(source: str, **more: object) -> pb.JudgeRequest:
    return pb.JudgeRequest(program=pb.Program(source=source), suite=SUITE, **more)


async def test_a_judgement_comes_back_whole(served: Served) -> None:
    result = await served.stub.Judge(request("pass", request_id="r1"), timeout=60)
    assert (result.status, result.score, result.request_id) == (pb.SANDBOX_STATUS_PASSED, 1.0, "r1")
    assert (result.tier, result.integrity) == (pb.SANDBOX_TIER_T3, pb.SANDBOX_INTEGRITY_SPLIT)
    assert (result.cases_total, result.cases_run, result.cases_passed, result.attempt) == (1, 1, 1, 1)
    assert result.timing.run_us == 10_000
    assert len(result.suite_digest) == len(result.runtime_digest) == 64
    wrong = await served.stub.Judge(request("wrong"), timeout=60)
    assert (wrong.HasField("score"), wrong.score) == (True, 0.0)


@pytest.mark.parametrize(("source", "more", "status", "retryable"), [
    ("sandbox-error", {}, pb.SANDBOX_STATUS_SANDBOX_ERROR, True),
    ("raise", {}, pb.SANDBOX_STATUS_SANDBOX_ERROR, True),
    ("no-score", {}, pb.SANDBOX_STATUS_SANDBOX_ERROR, True),
    ("hang", {"deadline_unix_ms": 300}, pb.SANDBOX_STATUS_DEADLINE_EXCEEDED, True),
    ("pass", {"deadline_unix_ms": -5000}, pb.SANDBOX_STATUS_DEADLINE_EXCEEDED, True),
    ("pass", {"min_tier": pb.SANDBOX_TIER_T4}, pb.SANDBOX_STATUS_REJECTED_TIER, False),
    ("pass", {"scoring": 99}, pb.SANDBOX_STATUS_INVALID_REQUEST, False),
    ("pass", {"suite": pb.Suite(json=b"{")}, pb.SANDBOX_STATUS_GOLD_ERROR, False),
    ("pass", {"suite": EMPTY}, pb.SANDBOX_STATUS_GOLD_ERROR, False),
])  # fmt: skip
async def test_a_fault_never_becomes_a_score(
    served: Served, source: str, more: dict, status: int, retryable: bool
) -> None:
    if "deadline_unix_ms" in more:
        more = {"deadline_unix_ms": int(time.time() * 1000) + more["deadline_unix_ms"]}
    asked = request(source)
    asked.MergeFrom(pb.JudgeRequest(**more))
    if "suite" in more:
        asked.suite.CopyFrom(more["suite"])
    result = await served.stub.Judge(asked, timeout=60)
    assert (result.status, result.HasField("score"), result.retryable) == (status, False, retryable)
    assert result.message


async def test_overload_is_resource_exhausted_with_a_hint(served: Served) -> None:
    waiting = [
        asyncio.ensure_future(served.stub.Judge(request(f"sleep 0.4 then pass {n}"), timeout=20)) for n in range(4)
    ]
    await asyncio.sleep(0.2)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.stub.Judge(request("pass"), timeout=60)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    hints = [value for key, value in refused.value.trailing_metadata() if key == RETRY_AFTER]
    assert len(hints) == 1
    assert int(hints[0]) > 0
    assert [(await each).score for each in waiting] == [1.0] * 4


async def test_the_calls_own_deadline_ends_the_run(served: Served) -> None:
    (answer,) = await asyncio.gather(served.stub.Judge(request("hang"), timeout=0.3), return_exceptions=True)
    if isinstance(answer, pb.JudgeResult):  # whoever of both looks at the clock first says so
        assert (answer.status, answer.HasField("score")) == (pb.SANDBOX_STATUS_DEADLINE_EXCEEDED, False)
    else:
        assert isinstance(answer, grpc.aio.AioRpcError)
        assert answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(60):
        await served.judge.a_kill.wait()


async def test_a_cancelled_call_ends_the_run(served: Served) -> None:
    call = served.stub.Judge(request("hang"), timeout=30)
    await asyncio.sleep(0.2)
    call.cancel()
    async with asyncio.timeout(60):
        await served.judge.a_kill.wait()
    assert (await served.stub.Judge(request("pass"), timeout=60)).score == 1.0


async def test_a_request_is_cancelled_by_its_name(served: Served) -> None:
    asking = asyncio.ensure_future(served.stub.Judge(request("hang", request_id="r9", tenant="tests"), timeout=30))
    await asyncio.sleep(0.2)
    assert not (await served.stub.Cancel(pb.CancelRequest(tenant="others", request_id="r9"), timeout=60)).found
    assert (await served.stub.Cancel(pb.CancelRequest(tenant="tests", request_id="r9"), timeout=60)).found
    result = await asking
    assert (result.status, result.HasField("score")) == (pb.SANDBOX_STATUS_CANCELLED, False)
    assert served.judge.killed == ["hang"]


async def test_a_long_stream_waits_for_room_and_is_not_refused(served: Served) -> None:
    requests = [request("wrong" if n % 3 else "pass", request_id=str(n)) for n in range(40)]
    results = {each.request_id: each async for each in served.stub.JudgeBatch(iter(requests), timeout=30)}
    assert len(results) == 40
    assert all(results[str(n)].score == (0.0 if n % 3 else 1.0) for n in range(40))


async def test_a_stream_answers_as_results_come_and_faults_among_them(served: Served) -> None:
    requests = [request("sleep 0.5 then pass", request_id="slow"), request("raise", request_id="broken")]
    requests[1].priority = pb.SANDBOX_PRIORITY_EVAL
    results = {each.request_id: each async for each in served.stub.JudgeBatch(iter(requests), timeout=30)}
    assert results["slow"].score == 1.0
    assert results["broken"].status == pb.SANDBOX_STATUS_SANDBOX_ERROR
    assert not results["broken"].HasField("score")


async def test_a_stream_that_is_dropped_leaves_nothing_running(served: Served) -> None:
    async def endless() -> AsyncIterator[pb.JudgeRequest]:
        for n in range(3):
            yield request(f"hang {n}")
        await asyncio.Event().wait()

    call = served.stub.JudgeBatch(endless(), timeout=30)
    await asyncio.sleep(0.3)
    call.cancel()
    async with asyncio.timeout(60):
        await served.judge.a_kill.wait()
    assert (await served.stub.Judge(request("pass"), timeout=60)).score == 1.0


async def test_a_program_is_executed(served: Served) -> None:
    result = await served.stub.Execute(pb.ExecuteRequest(program=pb.Program(source="pass"), stdin=b"x"), timeout=60)
    assert (result.status, result.stdout, result.exit_code) == (pb.SANDBOX_STATUS_PASSED, b"x", 0)
    asked = [pb.ExecuteRequest(request_id=str(n), program=pb.Program(source=f"pass {n}")) for n in range(10)]
    call = served.stub.ExecuteStream(iter(asked), timeout=20)
    assert {each.request_id async for each in call} == {str(n) for n in range(10)}


async def test_mathematics_is_verified(served: Served) -> None:
    def ask(gold: str, completion: str) -> pb.MathRequest:
        return pb.MathRequest(request_id=completion, gold=gold, completion=completion)

    equal = await served.stub.VerifyMath(ask("5", "\\boxed{5}"), timeout=20)
    assert (equal.status, equal.score, equal.request_id) == (pb.MATH_STATUS_EQUAL, 1.0, "\\boxed{5}")
    call = served.stub.VerifyMathBatch(iter([ask("5", "6"), ask("5", "nothing"), ask("", "5")]), timeout=20)
    results = {each.request_id: each async for each in call}
    assert (results["6"].status, results["6"].score) == (pb.MATH_STATUS_NOT_EQUAL, 0.0)
    assert results["5"].status == pb.MATH_STATUS_GOLD_UNPARSEABLE
    assert not results["5"].HasField("score")


async def test_capabilities_tell_what_there_is(served: Served) -> None:
    offered = await served.stub.Capabilities(pb.CapabilitiesRequest(), timeout=60)
    assert (offered.tier, offered.slots, offered.min_tier) == (pb.SANDBOX_TIER_T3, 1, pb.SANDBOX_TIER_T2)
    assert [each.language for each in offered.runtimes] == ["python", "cpp"]
    assert offered.default_limits.wall_ms == 4000
    assert "humaneval" in offered.formats
    assert "tokens" in offered.checkers


async def test_without_the_token_nothing_is_judged(served: Served) -> None:
    async with connect(f"127.0.0.1:{served.port}", "another") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await rpc.SandboxStub(channel).Judge(request("pass"), timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert served.judge.asked == []


async def test_rows_of_data_sets_are_suites(served: Served) -> None:
    row = {"task_id": "t", "prompt": "def f(x):\n", "test": "def check(candidate):\n    assert candidate(1) == 1\n",
           "entry_point": "f"}  # fmt: skip
    text = json.dumps(row).encode()
    named = await served.stub.PutSuite(pb.Suite(format="humaneval", json=text), timeout=60)
    assert named.digest == (await served.stub.PutSuite(pb.Suite(format="auto", json=text), timeout=60)).digest
    for unfit, why in ((pb.Suite(format="nonesuch", json=text), "nonesuch"), (EMPTY, "every program would pass")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.PutSuite(unfit, timeout=60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert why in refused.value.details()
