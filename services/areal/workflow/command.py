"""Agent that is a command: a program in any language, run once for each episode as a child process.

It finds the model by the environment variables of the usual clients, reads its dataset row from standard input, and
prints its reward as its last word, or posts it. Its whole process group ends with the episode.
"""

import asyncio
import contextlib
import json
import math
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any
from weakref import WeakKeyDictionary

from areal.errors import DataError
from areal.workflow.base import Outcome

OURS = "AREAL_"  # variables of the platform, which no agent needs
TOLD = 2_000  # last characters that are kept of what a command said


class CommandAgent:
    """Runs `command` in the worker's environment, in `directory` and with `env` added. Use it as a recipe's agent."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, directory: str | None = None
    ) -> None:
        self._command = tuple(command)
        self._env = dict(env or {})
        self._directory = directory
        self._starting: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def run(self, data: Mapping[str, Any], *, base_url: str, api_key: str, **extra: Any) -> Outcome:
        """One episode: the number that the command printed last, if it did, and the end of its output.

        Raises DataError when it can't be started or ends with another code than 0.
        """
        # files and no pipes: a child that it leaves behind holds nobody up, and none of them can be full
        with tempfile.TemporaryFile() as row, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
            row.write(json.dumps(dict(data)).encode())
            row.seek(0)
            code = await self._end_of(row, said, errors, self._environment(base_url, api_key))
            printed, complaints = _tail(said), _tail(errors)
        if code:
            raise DataError(
                f"the agent's command ended with {code}: {complaints or printed}",
                fix="let it end with 0 after it has printed its reward",
            )
        return Outcome(_number(printed), "\n".join(text for text in (printed, complaints) if text))

    async def _end_of(self, row: IO[bytes], said: IO[bytes], errors: IO[bytes], env: Mapping[str, str]) -> int:
        one_by_one = self._starting.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        try:
            async with one_by_one:  # starting holds the event loop, and hundreds begin together
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=row,
                    stdout=said,
                    stderr=errors,
                    env=env,
                    cwd=self._directory,
                    start_new_session=True,
                )
        except OSError as error:
            raise DataError(
                f"the agent's command can't be started: {error}", fix="install it where workers run, or name its path"
            ) from error
        try:
            return await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it, or what it left behind
            await process.wait()

    def _environment(self, base_url: str, api_key: str) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        return {
            **given,
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_BASE": base_url,
            "OPENAI_API_KEY": api_key,
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": api_key,
            **self._env,
        }


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * TOLD))
    return file.read().decode(errors="replace").strip()[-TOLD:]


def _number(said: str) -> float | None:
    """The last word, where it is a finite number."""
    try:
        number = float(said.split()[-1])
    except (IndexError, ValueError):
        return None
    return number if math.isfinite(number) else None
