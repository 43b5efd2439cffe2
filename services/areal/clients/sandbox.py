"""Judging and running programs by a reward service: one caller's side of the Sandbox contract.

Owns retries of what says nothing about the program (with the service's hint when it has no room), and the upload of a
suite when the service doesn't know its digest. What can't be judged is raised: a result that comes back has a score.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import cached_property

import grpc
import orjson

from areal.errors import ArealError, BugError, ConfigError, DataError, InfraError
from areal.net.channel import connect
from areal.net.status import raise_as
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc

RETRY_AFTER = "retry-after-ms"
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
_CALL_S = 60.0  # of a call without a deadline
_CAPACITY = 4096  # digests remembered
_UPLOADS = 3  # of one suite for one request: a service that forgets faster has no room for it


class OverloadedError(InfraError):
    """The service had no room for as long as the caller had patience."""


class TierError(ConfigError):
    """The service can't offer the tier or the language that was asked for."""


class SuiteError(DataError):
    """The suite is at fault."""


@dataclass(frozen=True)
class SuiteText:
    """A suite as its JSON text: our own form, or a row of a data set."""

    json: bytes
    format: str = "native"

    @classmethod
    def of(cls, document: object, format: str = "auto") -> SuiteText:
        return cls(orjson.dumps(document), format)

    @cached_property
    def key(self) -> bytes:
        """The digest of format and text."""
        return hashlib.sha256(self.format.encode() + b"\0" + self.json).digest()


class SandboxClient:
    """Asks one service. Lives on one event loop."""

    def __init__(self, address: str, token: str, *, tenant: str = "", patience_s: float = 120.0) -> None:
        """`patience_s`: how long a request is tried again before its fault is raised."""
        self._channel = connect(address, token)
        self._stub = rpc.SandboxStub(self._channel)
        self._tenant = tenant
        self._patience_s = patience_s
        self._digests: dict[bytes, str] = {}

    async def close(self) -> None:
        await self._channel.close()

    async def judge(
        self, source: str, suite: SuiteText, request: pb.JudgeRequest | None = None, *, language: str = "python"
    ) -> pb.JudgeResult:
        """Judges a program; `request` holds whatever else it should ask for.

        Raises:
            OverloadedError, InfraError: nobody could judge it for `patience_s`, or until its deadline.
            TierError: this service never will.
            SuiteError, DataError: the suite or the request is at fault.
        """
        asked = pb.JudgeRequest()
        if request is not None:
            asked.CopyFrom(request)
        asked.program.CopyFrom(pb.Program(language=language, source=source))
        asked.tenant = asked.tenant or self._tenant
        until = self._until(asked.deadline_unix_ms)
        asked.suite_digest = await self.put_suite(suite)
        uploads, tries = 0, 0
        last: ArealError | None = None
        while True:
            answer = await self._once(asked, until, last)
            if isinstance(answer, pb.JudgeResult):
                if answer.HasField("score"):
                    return answer
                if answer.unknown_suite and uploads < _UPLOADS:
                    uploads += 1
                    asked.suite_digest = await self.put_suite(suite, again=True)
                    continue
                if answer.status == pb.SANDBOX_STATUS_DEADLINE_EXCEEDED and last is not None:
                    raise last
                fault, hint_s = _error(answer), answer.retry_after_ms / 1000
                if not answer.retryable:
                    raise fault
            else:
                fault, hint_s = answer
            pause_s = hint_s or min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(tries, 8))
            tries += 1
            last = fault
            if time.time() + pause_s >= until:
                raise fault
            await asyncio.sleep(pause_s)

    async def judge_batch(self, requests: Iterable[pb.JudgeRequest]) -> AsyncIterator[pb.JudgeResult]:
        """Judges many in one stream; results come as they are ready, those without a score among them."""

        async def asked() -> AsyncIterator[pb.JudgeRequest]:
            for request in requests:
                request.tenant = request.tenant or self._tenant
                yield request

        try:
            async for result in self._stub.JudgeBatch(asked()):
                yield result
        except grpc.RpcError as error:
            raise_as(error)

    async def put_suite(self, suite: SuiteText, *, again: bool = False) -> str:
        """The digest of a suite; uploads it the first time, or `again`. Raises DataError for one that is unfit."""
        if again or suite.key not in self._digests:
            if len(self._digests) >= _CAPACITY:
                self._digests.pop(next(iter(self._digests)))
            try:
                reference = await self._stub.PutSuite(pb.Suite(format=suite.format, json=suite.json), timeout=_CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    raise SuiteError(error.details() or "the suite is unfit", fix="correct the suite") from error
                raise_as(error)
            self._digests[suite.key] = reference.digest
        return self._digests[suite.key]

    async def execute(self, request: pb.ExecuteRequest) -> pb.ExecuteResult:
        """Runs a program once; any status is an answer."""
        request.tenant = request.tenant or self._tenant
        try:
            return await self._stub.Execute(request, timeout=self._until(request.deadline_unix_ms) - time.time())
        except grpc.RpcError as error:
            raise_as(error)

    async def capabilities(self) -> pb.SandboxCapabilities:
        """What the service runs, and behind what."""
        try:
            return await self._stub.Capabilities(pb.CapabilitiesRequest(), timeout=_CALL_S)
        except grpc.RpcError as error:
            raise_as(error)

    async def cancel(self, request_id: str) -> bool:
        """Ends a request by its id; whether it was there."""
        try:
            answer = await self._stub.Cancel(pb.CancelRequest(tenant=self._tenant, request_id=request_id), timeout=5)
        except grpc.RpcError as error:
            raise_as(error)
        return bool(answer.found)

    def _until(self, deadline_unix_ms: int) -> float:
        patient = time.time() + self._patience_s
        return min(patient, deadline_unix_ms / 1000) if deadline_unix_ms else patient

    async def _once(
        self, request: pb.JudgeRequest, until: float, last: ArealError | None
    ) -> pb.JudgeResult | tuple[ArealError, float]:
        """A result; or what kept the service from giving one, and when to come back.

        When the time is over, `last`, the fault before, is raised: it says more than that the time is over.
        """
        try:
            return await self._stub.Judge(request, timeout=max(0.01, until - time.time()))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return OverloadedError(error.details() or "it has no room", fix="add replicas"), _hint_s(error)
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return InfraError(f"the reward service is not there: {error.details()}", fix="see its log"), 0.0
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and last is not None:
                raise last from error
            raise_as(error)


def _hint_s(error: grpc.aio.AioRpcError) -> float:
    for key, value in error.trailing_metadata() or ():
        if key == RETRY_AFTER and str(value).isdigit():
            return int(value) / 1000
    return 0.0


def _error(result: pb.JudgeResult) -> ArealError:
    """The error that a result without a score stands for."""
    name = pb.SandboxStatus.Name(result.status).removeprefix("SANDBOX_STATUS_")
    said = f"{name}: {result.message}"
    match name:
        case "REJECTED_OVERLOAD":
            return OverloadedError(said, fix="add replicas of the reward service")
        case "CANCELLED" | "DEADLINE_EXCEEDED" | "SANDBOX_ERROR":
            return InfraError(said, fix="ask again")
        case "REJECTED_TIER":
            return TierError(said, fix="use a service whose tier and languages are enough (areal reward capabilities)")
        case "GOLD_ERROR":
            return SuiteError(said, fix="correct the suite")
        case "INVALID_REQUEST":
            return DataError(said, fix="correct the request")
        case _:
            return BugError(f"a result without a score: {said}")
