"""Real clients as child processes: each in the environment of tools/venv, one process for all cells of a client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".cache" / "agent-clients" / "bin" / "python"
DRIVER = ROOT / "tests" / "conformance" / "driver.py"


class RealClient:
    """One driver. `run` is for any event loop; answers are told apart by their number."""

    def __init__(self, name: str) -> None:
        unwanted = ("PYTHONDONTWRITEBYTECODE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        quiet = {key: value for key, value in os.environ.items() if key.upper() not in unwanted}
        self._process = subprocess.Popen(
            [str(PYTHON), str(DRIVER), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet
        )
        self._numbers = count()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is up
        threading.Thread(target=self._read, daemon=True).start()

    async def run(self, base_url: str, api_key: str, texts: list[str], **cell: Any) -> list[Any]:
        """One conversation: the answer to each text, or the error that its client raised."""
        number, loop = next(self._numbers), asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting[number] = (loop, future)
        line = {"number": number, "base_url": base_url, "api_key": api_key, "texts": texts, **cell}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        async with asyncio.timeout(60):
            return (await future)["said"]

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            loop, future = self._waiting.pop(told["number"])
            with contextlib.suppress(RuntimeError):  # its test is over
                loop.call_soon_threadsafe(future.set_result, told)
