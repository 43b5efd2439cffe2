"""Server of a child interpreter: runs agents or environments for a worker, by JSON lines on its standard streams.

Imports the standard library alone, for it runs in Pythons that don't have this project: `python serve.py
'{"kind": "environment", "name": …, "recipe": …, "adapters": …, "config": {…}}'`. It looks a name up in the recipe, then
among the adapters, then among the entry points `areal.environments` of its own Python. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = "areal.environments"  # entry points: `make(row, **config)`, or a class, or what an agent's `run` is
THREADS = 256  # environments that may block at once: clients of a server do
INFRA, DATA, CONFIG = "infra", "data", "config"
TRACEBACK_CHARS = 8_000


class UserRefusal(Exception):
    """What the worker is to raise."""

    def __init__(self, kind: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.told = {"kind": kind, "message": message, "fix": fix}


def find(kind: str, name: str, recipe: str | None, adapters: str) -> Any:
    """The agent or the environment called `name`. Raises Refused."""
    if recipe is not None:
        found = vars(load(Path(recipe), "areal_recipe", "the recipe")).get(name)
        if callable(found) or callable(getattr(found, "run", None)):
            return found() if kind == "agent" and inspect.isclass(found) else found
    if kind == "agent":
        raise UserRefusal(CONFIG, f"the recipe has no agent {name!r}", "name a class with `async def run(…)`")
    file = Path(adapters) / f"{name.replace('-', '_')}.py"
    if file.is_file() and not name.startswith("_"):
        adapter = load(file, f"areal_environment_{file.stem}", f"the environment {name!r}")
        return getattr(adapter, "run", None) or adapter.make
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name in points:
        return points[name].load()
    built_in = {path.stem.replace("_", "-") for path in Path(adapters).glob("[a-z]*.py")}
    known = ", ".join(sorted(built_in | set(points)))
    raise UserRefusal(
        CONFIG,
        f"there is no environment {name!r}; {sys.executable} has {known}",
        f"define it in the recipe, or install the package whose entry point of {GROUP} has this name",
    )


def load(file: Path, name: str, what: str) -> ModuleType:
    """Run a file as a module of this Python. Raises Refused in words where a package is missing."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UserRefusal(
            CONFIG,
            f"{what} needs the package {error.name}, which {sys.executable} doesn't have",
            f"install {error.name} there, or name a Python that has it",
        ) from error
    return module


def calls_policy(target: Any) -> bool:
    """Whether an environment plays its episodes itself, as an agent does: `async run(row, *, base_url, api_key, …)`."""
    return inspect.iscoroutinefunction(target) and "base_url" in inspect.signature(target).parameters


class CallServer:
    """Answers calls. Each is a task of its own, found again by its number to be cancelled."""

    def __init__(self, target: Any, config: dict[str, Any]) -> None:
        self._target = target
        self._config = config
        self._environments: dict[int, Any] = {}
        self._threads = ThreadPoolExecutor(THREADS)
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._does: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "agent": self._agent,
            "make": self._make,
            "reset": self._reset,
            "step": self._step,
            "close": self._close,
        }

    def take(self, line: str, out: Any) -> None:
        """One line of the worker."""
        asked = json.loads(line)
        number = asked["number"]
        if asked["do"] == "cancel":
            if number in self._calls:
                self._calls[number].cancel()
            return
        task = self._calls[number] = asyncio.create_task(self._answer(number, asked, out))
        task.add_done_callback(lambda _: self._calls.pop(number, None))

    async def _answer(self, number: int, asked: dict[str, Any], out: Any) -> None:
        try:
            told = {"value": plain(await self._does[asked["do"]](asked))}
            text = json.dumps({"number": number, **told})
        except asyncio.CancelledError:
            text = json.dumps({"number": number, "error": fault(asyncio.CancelledError("the agent cancelled itself"))})
        except Exception as error:
            text = json.dumps({"number": number, "error": fault(error)})
        out.write(text + "\n")
        out.flush()

    async def _agent(self, asked: dict[str, Any]) -> Any:
        """One episode of an agent: its reward."""
        run = getattr(self._target, "run", self._target)
        async with AsyncExitStack() as stack:
            client = None
            if importlib.util.find_spec("httpx"):
                import httpx

                verify = asked["base_url"].startswith("https:")  # else it reads authorities for nothing
                client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, verify=verify))
            access = {"base_url": asked["base_url"], "api_key": asked["api_key"], "http_client": client}
            return await run(asked["row"], **access, **self._config)

    async def _make(self, asked: dict[str, Any]) -> int:
        """A fresh environment: its number."""
        made = await self._call(self._target, asked["row"], **self._config)
        self._environments[asked["number"]] = made
        return int(asked["number"])

    async def _reset(self, asked: dict[str, Any]) -> Any:
        """First observation and info, which stays here."""
        observation, _ = await self._call(self._environments[asked["environment"]].reset)
        return observation

    async def _step(self, asked: dict[str, Any]) -> Any:
        """Observation, reward, terminated, truncated."""
        step = self._environments[asked["environment"]].step
        observation, reward, terminated, truncated, _ = await self._call(step, asked["action"])
        return [observation, reward, terminated, truncated]

    async def _close(self, asked: dict[str, Any]) -> None:
        """Forget an environment."""
        environment = self._environments.pop(asked["environment"], None)
        if close := getattr(environment, "close", None):
            await self._call(close)

    async def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments, **named)
        run = asyncio.get_running_loop().run_in_executor
        return await run(self._threads, lambda: function(*arguments, **named))


def plain(value: Any) -> Any:
    """JSON's own values: numbers of numpy become Python's."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def fault(error: BaseException) -> dict[str, Any]:
    """An error for the worker: a lost connection is nobody's fault, what else was raised is the code's."""
    if isinstance(error, UserRefusal):
        return error.told
    kind = INFRA if isinstance(error, ConnectionError | TimeoutError) else DATA
    said = "".join(traceback.format_exception(error))[-TRACEBACK_CHARS:]
    return {"kind": kind, "message": f"{type(error).__name__}: {error}", "fix": "", "traceback": said}


async def serve(target: Any, config: dict[str, Any], out: Any) -> None:
    """Answer until standard input ends."""
    loop, server = asyncio.get_running_loop(), CallServer(target, config)

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(server.take, line, out)
        os._exit(0)  # the worker is gone

    threading.Thread(target=listen, daemon=True).start()
    await loop.create_future()


def main() -> None:
    """`serve.py SETTINGS`: says first whether it is ready."""
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # what packages print is no answer
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    try:
        target = find(asked["kind"], asked["name"], asked["recipe"], asked["adapters"])
    except Exception as error:
        print(json.dumps({"number": -1, "error": fault(error)}), file=out, flush=True)
        return
    print(json.dumps({"number": -1, "value": {"calls_policy": calls_policy(target)}}), file=out, flush=True)
    asyncio.run(serve(target, asked["config"], out))


if __name__ == "__main__":
    main()
