"""Runs a program once, in whatever language: compiled if need be, then one run in a cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from areal.errors import InfraError
from areal.judge.dispatch.values import Executed, Execution
from areal.judge.languages.toolchains import Toolchains
from areal.judge.values import Status, Submission
from areal.sandbox.values import Ended, Ending, Run

_STATUS = {
    Ending.WALL_LIMIT: Status.TIME_LIMIT,
    Ending.CPU_LIMIT: Status.TIME_LIMIT,
    Ending.MEMORY_LIMIT: Status.MEMORY_LIMIT,
    Ending.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
    Ending.DISK_LIMIT: Status.DISK_LIMIT,
    Ending.PROCESS_LIMIT: Status.PROCESS_LIMIT,
    Ending.SIGNALED: Status.RUNTIME_ERROR,
}


class Runner(Protocol):
    """What runs: `sandbox.runner.Sandbox`."""

    async def run(self, run: Run) -> Ended: ...


class Executor:
    """Executes by a sandbox and its toolchains."""

    def __init__(self, cells: Runner, toolchains: Toolchains) -> None:
        self._cells = cells
        self._toolchains = toolchains

    async def execute(self, execution: Execution) -> Executed:
        """Raises ConfigError when this machine can't run it, InfraError when the sandbox failed."""
        compiled = await self._toolchains.compiled(Submission(execution.source, execution.language))
        if not compiled.ok:
            assert compiled.result is not None
            message = compiled.result.detail
            return Executed(compiled.result.status, compile=compiled.result, message=message)
        run = self._toolchains.run_of(compiled, execution.stdin, execution.limits)
        if execution.files or execution.keep:
            run = replace(run, files={**execution.files, **run.files}, keep=(*run.keep, *execution.keep))
        ended = await self._cells.run(run)
        if ended.ending is Ending.CANCELLED:
            raise InfraError("the run was cancelled by somebody else")
        return Executed(status_of(ended), ended, compiled.result)


def status_of(ended: Ended) -> Status:
    """PASSED is an end by itself with exit code 0."""
    if ended.clean:
        return Status.PASSED
    return _STATUS.get(ended.ending, Status.RUNTIME_ERROR)
