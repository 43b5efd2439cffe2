"""Runs a program once, in whatever language: compiled if need be, then one run in a cell."""

import hashlib
from dataclasses import dataclass, replace

from areal.errors import InfraError
from cachetools import LRUCache

from areal_judge.judge.dispatch.values import Execution, ExecutionResult
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.record import LIMITS
from areal_judge.judge.suites import to_json, validate
from areal_judge.judge.values import CaseResult, Status, Submission, Suite
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Ending, RunEnding

ANSWER_BYTES = 15 << 20  # of output and kept files: a message has 16 MiB


class Executor:
    """Executes by a sandbox and its toolchains."""

    def __init__(self, cells: Sandbox, toolchains: Toolchains) -> None:
        self._cells = cells
        self._toolchains = toolchains

    async def execute(self, execution: Execution) -> ExecutionResult:
        """Raises ConfigError when this machine can't run it, InfraError when the sandbox failed."""
        compiled = await self._toolchains.compiled(Submission(execution.source, execution.language))
        if not compiled.ok:
            assert compiled.result is not None
            message = compiled.result.detail
            return ExecutionResult(compiled.result.status, compile=compiled.result, message=message)
        run = self._toolchains.run_of(compiled, execution.stdin, execution.limits)
        if execution.files or execution.keep:
            run = replace(run, files={**execution.files, **run.files}, keep=(*run.keep, *execution.keep))
        ended = await self._cells.run(run)
        if ended.ending is Ending.CANCELLED:
            raise InfraError("the run was cancelled by somebody else")
        return answer_of(ended, compiled.result)


def answer_of(ended: RunEnding, compiled: CaseResult | None = None) -> ExecutionResult:
    """What came of a run, as far as an answer carries it: more output or files than that are the program's failure."""
    printed = len(ended.stdout) + len(ended.stderr)
    kept = sum(len(path) + len(data) for path, data in ended.files.items())
    if printed > ANSWER_BYTES:
        message = (
            f"the output has {_megabytes(printed)}, more than the {_megabytes(ANSWER_BYTES)} that an answer carries"
        )
        cut = replace(ended, stdout=ended.stdout[: ANSWER_BYTES // 2], stderr=b"", files={})
        return ExecutionResult(Status.OUTPUT_LIMIT, cut, compiled, message=message)
    if printed + kept > ANSWER_BYTES:
        message = f"the kept files have {_megabytes(kept)}, more than an answer carries beside the output"
        message += f" ({_megabytes(ANSWER_BYTES)} in all): keep fewer, or smaller ones"
        return ExecutionResult(Status.DISK_LIMIT, replace(ended, files={}), compiled, message=message)
    return ExecutionResult(status_of(ended), ended, compiled)


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MB"


def status_of(ended: RunEnding) -> Status:
    """PASSED is an end by itself with exit code 0."""
    if ended.clean:
        return Status.PASSED
    return LIMITS[ended.ending][0] if ended.ending in LIMITS else Status.RUNTIME_ERROR


# ---- Suites that were uploaded once, so that requests carry a digest instead of megabytes of tests
# A request holds its suite itself, so that dropping one from here disturbs no run.


CAPACITY_BYTES = 256 << 20


@dataclass(frozen=True)
class StoredSuite:
    """A suite that was found fit to judge, with its digest and the size of its canonical form."""

    suite: Suite
    digest: str
    size_bytes: int

    @classmethod
    def of(cls, suite: Suite, *, read: bool = False) -> "StoredSuite":
        """Raises DataError when no program should be judged by it. Takes milliseconds for megabytes of tests.

        `read`: it comes from its text, whose reading looks for that.
        """
        if not read:
            validate(suite)
        text = to_json(suite).encode("ascii")
        return cls(suite, hashlib.sha256(text).hexdigest(), len(text))


class SuiteStore:
    """LRU cache of suites by digest, bounded by bytes."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._suites: LRUCache[str, StoredSuite] = LRUCache(capacity_bytes, getsizeof=lambda each: each.size_bytes)

    def __len__(self) -> int:
        return len(self._suites)

    @property
    def held_bytes(self) -> int:
        """Of all suites."""
        return int(self._suites.currsize)

    def put(self, stored: StoredSuite) -> bool:
        """Keeps a suite. False: it is larger than the whole store, and not kept."""
        if stored.size_bytes > self._suites.maxsize:
            return False
        self._suites[stored.digest] = stored
        return True

    def get(self, digest: str) -> StoredSuite | None:
        """The suite, or None when it was never here or has been dropped."""
        return self._suites.get(digest)
