"""The Sandbox contract without a transport: a coroutine for each RPC, over the messages of `sandbox.proto`.

Both faces, gRPC and HTTP, call these, so that a request has the same answer over either. A deadline or a cancellation
of the caller's reaches the run. A stream waits for room in the queue: no more of it is read than there is room for.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import orjson
from areal import __version__
from areal.distribution import install
from areal.errors import DataError
from areal.observe.waits import ProgressCounter
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc

from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.dispatch.executor import StoredSuite
from areal_judge.judge.dispatch.meters import Readiness
from areal_judge.judge.dispatch.values import ExecutionResult, RefusedError
from areal_judge.judge.values import Judgement, Status
from areal_judge.mathematics import MathScorer
from areal_judge.server import wire

STREAM_WINDOW = 256  # requests of one stream in work: more than any service has slots, less than any queue holds
_THREAD_ABOVE_BYTES = 256 << 10  # suites this large are read beside the event loop

Remaining = Callable[[], float | None]  # Seconds that the call's own deadline leaves; None without one
Q = TypeVar("Q", pb.JudgeRequest, pb.ExecuteRequest, pb.MathRequest)
P = TypeVar("P", pb.JudgeResult, pb.ExecuteResult)
R = TypeVar("R", pb.JudgeResult, pb.ExecuteResult, pb.MathResult)


def no_deadline() -> None:
    """The `Remaining` of a call without a deadline of its own."""


class SandboxHandlers:
    """Answers for one dispatcher, and for the math verifier where there is one."""

    def __init__(
        self,
        dispatcher: JudgeDispatcher,
        readiness: Readiness,
        progress: ProgressCounter,
        math: MathScorer | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._readiness = readiness
        self._progress = progress
        self._math = math

    async def judge(self, request: pb.JudgeRequest, remaining: Remaining = no_deadline) -> pb.JudgeResult:
        offer = self._dispatcher.offer
        try:
            ticket = wire.ticket_of(request, remaining())
            options, overrides = wire.options_of(request, offer.min_tier), wire.overrides_of(request)
            suite: StoredSuite | str = request.suite_digest
            if request.WhichOneof("tests") == "suite":
                suite = await _suite(request.suite)
            submission = wire.submission_of(request.program)
            judgement = await self._dispatcher.judge(submission, suite, options, ticket, overrides)
        except RefusedError as refused:
            judgement = Judgement(refused.status, message=refused.message, tier=offer.tier)
        except DataError as error:
            judgement = Judgement(Status.GOLD_ERROR, message=str(error), tier=offer.tier)
        self._progress.advance()
        return wire.judgement_to_wire(judgement, request.request_id, offer.runtime_digest)

    def judge_batch(
        self, requests: AsyncIterator[pb.JudgeRequest], remaining: Remaining = no_deadline
    ) -> AsyncGenerator[pb.JudgeResult, None]:
        return _each(requests, lambda one: _patient(lambda: self.judge(one, remaining)))

    async def execute(self, request: pb.ExecuteRequest, remaining: Remaining = no_deadline) -> pb.ExecuteResult:
        offer = self._dispatcher.offer
        try:
            ticket = wire.ticket_of(request, remaining())
            executed = await self._dispatcher.execute(wire.execution_of(request, offer.min_tier), ticket)
        except RefusedError as refused:
            executed = ExecutionResult(refused.status, message=refused.message)
        self._progress.advance()
        return wire.executed_to_wire(executed, request.request_id)

    def execute_stream(
        self, requests: AsyncIterator[pb.ExecuteRequest], remaining: Remaining = no_deadline
    ) -> AsyncGenerator[pb.ExecuteResult, None]:
        return _each(requests, lambda one: _patient(lambda: self.execute(one, remaining)))

    async def verify_math(self, request: pb.MathRequest) -> pb.MathResult:
        began = time.monotonic()
        if self._math is None:
            message = f"this service verifies no mathematics; {install('reward')}"
            return pb.MathResult(request_id=request.request_id, status=pb.MATH_STATUS_ERROR, detail=message)
        item = reward_pb2.ScoreItem(
            verifier="math",
            completion=request.completion,
            row_json=orjson.dumps({"answer": request.gold}),
            deadline_s=request.deadline_ms / 1000,
        )
        (result,) = await self._math.score([item])
        self._progress.advance()
        answer = _math_result(result)
        answer.request_id = request.request_id
        answer.elapsed_us = round((time.monotonic() - began) * 1e6)
        return answer

    def verify_math_batch(self, requests: AsyncIterator[pb.MathRequest]) -> AsyncGenerator[pb.MathResult, None]:
        return _each(requests, self.verify_math)

    async def put_suite(self, request: pb.Suite) -> pb.SuiteRef:
        """Raises RefusedError for what is no suite, DataError for one that is unfit to judge."""
        return pb.SuiteRef(digest=self._dispatcher.put_suite(await _suite(request)))

    async def capabilities(self, request: pb.CapabilitiesRequest) -> pb.SandboxCapabilities:
        dispatcher, state = self._dispatcher, self._readiness
        return wire.offer_to_wire(
            dispatcher.offer, dispatcher.slots, dispatcher.scheduler.memory, __version__, state.ready, state.words
        )

    async def cancel(self, request: pb.CancelRequest) -> pb.CancelResult:
        return pb.CancelResult(found=self._dispatcher.cancel(request.tenant, request.request_id))


def _math_result(result: reward_pb2.ScoreResult) -> pb.MathResult:
    if result.WhichOneof("outcome") == "verdict":
        verdict = result.verdict
        try:
            status = pb.MathStatus.Value(f"MATH_STATUS_{verdict.status}")
        except ValueError:
            return pb.MathResult(status=pb.MATH_STATUS_ERROR, detail=f"the verdict {verdict.status} is unknown")
        return pb.MathResult(score=verdict.score, status=status, method=verdict.method, detail=verdict.detail)
    fault = result.fault
    if fault.kind == common.FAULT_KIND_DATA:
        return pb.MathResult(status=pb.MATH_STATUS_GOLD_UNPARSEABLE, detail=fault.message)
    retryable = fault.kind == common.FAULT_KIND_INFRA
    return pb.MathResult(status=pb.MATH_STATUS_ERROR, detail=fault.message, retryable=retryable)


async def _suite(suite: pb.Suite) -> StoredSuite:
    if len(suite.json) <= _THREAD_ABOVE_BYTES:
        return wire.suite_of_json(suite.json, suite.format)
    return await asyncio.to_thread(wire.suite_of_json, suite.json, suite.format)


async def _patient(ask: Callable[[], Awaitable[P]]) -> P:
    """Of a stream: asks again when there may be room, as long as the stream lives."""
    while True:
        result = await ask()
        if result.status != pb.SANDBOX_STATUS_REJECTED_OVERLOAD:
            return result
        await asyncio.sleep(result.retry_after_ms / 1000 or 0.05)


async def _each(requests: AsyncIterator[Q], answer: Callable[[Q], Awaitable[R]]) -> AsyncGenerator[R, None]:
    """Answers in the order in which they are ready; reads on while fewer than STREAM_WINDOW are in work."""
    room = asyncio.Semaphore(STREAM_WINDOW)
    ready: asyncio.Queue[R | BaseException | None] = asyncio.Queue()
    working: set[asyncio.Task[None]] = set()

    async def one(request: Q) -> None:
        try:
            ready.put_nowait(await answer(request))
        except Exception as error:
            ready.put_nowait(error)
        finally:
            room.release()

    async def read() -> None:
        try:
            await room.acquire()
            async for request in requests:
                task = asyncio.create_task(one(request))
                working.add(task)
                task.add_done_callback(working.discard)
                await room.acquire()
            await asyncio.gather(*working)
            ready.put_nowait(None)
        except Exception as error:
            ready.put_nowait(error)

    reader = asyncio.create_task(read())
    try:
        while (result := await ready.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        reader.cancel()
        for task in list(working):
            task.cancel()
        await asyncio.gather(reader, *working, return_exceptions=True)


# ---- The Sandbox gRPC service: `handlers` behind the generated servicer
# A full queue is RESOURCE_EXHAUSTED with a hint for single calls, an unfit suite INVALID_ARGUMENT.


SERVICE_NAME = "areal.v1.Sandbox"
RETRY_AFTER = "retry-after-ms"

Context = grpc.aio.ServicerContext[Any, Any]


class SandboxService(rpc.SandboxServicer):
    """Calls the handlers."""

    def __init__(self, handlers: SandboxHandlers) -> None:
        self._handlers = handlers

    async def Judge(self, request: pb.JudgeRequest, context: Context) -> pb.JudgeResult:
        result = await self._handlers.judge(request, context.time_remaining)
        await _turn_away(context, result)
        return result

    async def JudgeBatch(
        self, request_iterator: AsyncIterator[pb.JudgeRequest], context: Context
    ) -> AsyncIterator[pb.JudgeResult]:
        async with aclosing(self._handlers.judge_batch(request_iterator, context.time_remaining)) as results:
            async for result in results:
                yield result

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResult:
        result = await self._handlers.execute(request, context.time_remaining)
        await _turn_away(context, result)
        return result

    async def ExecuteStream(
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Context
    ) -> AsyncIterator[pb.ExecuteResult]:
        async with aclosing(self._handlers.execute_stream(request_iterator, context.time_remaining)) as results:
            async for result in results:
                yield result

    async def VerifyMath(self, request: pb.MathRequest, context: Context) -> pb.MathResult:
        return await self._handlers.verify_math(request)

    async def VerifyMathBatch(
        self, request_iterator: AsyncIterator[pb.MathRequest], context: Context
    ) -> AsyncIterator[pb.MathResult]:
        async with aclosing(self._handlers.verify_math_batch(request_iterator)) as results:
            async for result in results:
                yield result

    async def PutSuite(self, request: pb.Suite, context: Context) -> pb.SuiteRef:
        try:
            return await self._handlers.put_suite(request)
        except (DataError, RefusedError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def Capabilities(self, request: pb.CapabilitiesRequest, context: Context) -> pb.SandboxCapabilities:
        return await self._handlers.capabilities(request)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResult:
        return await self._handlers.cancel(request)


async def _turn_away(context: Context, result: pb.JudgeResult | pb.ExecuteResult) -> None:
    if result.status == pb.SANDBOX_STATUS_REJECTED_OVERLOAD:
        hint = ((RETRY_AFTER, str(result.retry_after_ms)),)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, result.message, hint)
