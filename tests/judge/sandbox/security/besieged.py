"""The service of the arena: a sandbox in a process that has secrets, running attacks beside an innocent neighbour.

Reads one JSON object from standard input and prints a line of JSON a run. Knows nothing of what the attacks want.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import time
from typing import Any

from areal.errors import ArealError
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import ALL_LAYERS, ImageCommand, Layers, Limits, ProgramRun, PythonScript, Tier

_NEIGHBOUR = """
import sys, time, os
secret = sys.stdin.readline().strip()
if {scratch}:
    open("mine.txt", "w").write(secret)
    open("/tmp/mine.txt", "w").write(secret)
until = time.monotonic() + 0.25
while time.monotonic() < until:
    time.sleep(0.02)
print(sum(ord(letter) for letter in secret))
"""
_signals: list[int] = []


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


async def _attack(sandbox: Sandbox, one: dict[str, Any]) -> None:
    several = one["several"] and sandbox.powers.fork
    limits = Limits(**{**one["limits"], "processes": one["limits"]["processes"] if several else 1})
    files: dict[str, bytes] = {}
    entry: PythonScript | ImageCommand = PythonScript(one["source"])
    if one["command"]:
        files = {one["file"]: one["source"].encode()}
        entry = ImageCommand(("/bin/bash", "-c", one["command"]))
    keep = tuple(one["keep"]) if sandbox.powers.scratch else ()
    run = ProgramRun(entry, base64.b64decode(one["stdin"]), files, keep=keep, limits=limits, as_memory=one["as_memory"])
    began = time.monotonic()
    said: dict[str, Any] = {"name": one["name"], "error": ""}
    try:
        ended = await sandbox.run(run)
        said |= {
            "ending": ended.ending, "exit_code": ended.exit_code, "signal": ended.signal,
            "stdout": ended.stdout.decode(errors="replace"), "stderr": ended.stderr.decode(errors="replace"),
            "files": {name: data.decode(errors="replace") for name, data in ended.files.items()},
            "setup_s": ended.setup_s, "cpu_s": ended.cpu_s,
        }  # fmt: skip
    except ArealError as error:
        said["error"] = f"{type(error).__name__}: {error}"
    said["took_s"] = time.monotonic() - began
    _say(**said)


async def _neighbour(sandbox: Sandbox, secret: str, over: asyncio.Event) -> None:
    """Runs an innocent program again and again; says how often its answer was wrong."""
    source = _NEIGHBOUR.format(scratch=sandbox.powers.scratch)
    right = str(sum(ord(letter) for letter in secret))
    runs, wrong = 0, []
    while not over.is_set():
        runs += 1
        try:
            ended = await sandbox.run(
                ProgramRun(PythonScript(source), stdin=secret.encode(), limits=Limits(wall_s=15, cpu_s=5))
            )
            if not ended.clean or ended.stdout.decode().strip() != right:
                wrong.append(repr(ended)[:500])
        except ArealError as error:
            wrong.append(str(error))
    _say(neighbour=runs, wrong=wrong)


async def _main() -> None:
    told = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGUSR1, lambda number, frame: _signals.append(number))
    secret_descriptor = os.open(told["open_secret"], os.O_RDONLY)
    os.set_inheritable(secret_descriptor, True)
    layers = Layers(**{name: getattr(ALL_LAYERS, name) and name not in told["off"] for name in vars(ALL_LAYERS)})
    sandbox = Sandbox(
        SandboxConfig(min_tier=Tier.T0, allow_unsafe=True, highest_tier=Tier[told["tier"]], zygotes=2, layers=layers)
    )
    await sandbox.start()
    powers = sandbox.powers
    held = [probe.name for probe in powers.probes if probe.held]
    _say(ready=True, tier=powers.tier.name, memory_bound=powers.memory_bound, fork=powers.fork, held=held)
    over = asyncio.Event()
    neighbour = asyncio.create_task(_neighbour(sandbox, told["neighbour_secret"], over))
    slots = asyncio.Semaphore(told["at_once"])
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def bounded(one: dict[str, Any]) -> None:
        async with slots:
            await _attack(sandbox, one)

    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(bounded(json.loads(line)))
        tasks.add(task)
    await asyncio.gather(*tasks)
    over.set()
    await neighbour
    _say(signals=len(_signals))
    await sandbox.stop()
    _say(stopped=True)


if __name__ == "__main__":
    asyncio.run(_main())
