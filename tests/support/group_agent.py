"""A generation agent as a process of its own, with its engine: it may be killed or stopped, by `GroupAgent`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from areal.generation.agent import AgentSettings, GenerationAgent
from areal.spec.serving import EmbeddedEngineBlock


class GroupAgent:
    """One life of an agent that dials a controller and a trainer. `async with` it."""

    def __init__(self, server_id: str, controller: str, trainer: str, model: Path, run: Path, token: str) -> None:
        told = [server_id, controller, trainer, str(model), str(run), token]
        self._argv = [sys.executable, "-m", "support.group_agent", json.dumps(told)]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> GroupAgent:
        self._process = await asyncio.create_subprocess_exec(*self._argv, cwd=Path(__file__).parents[1])
        return self

    def send(self, number: signal.Signals) -> None:
        """A signal to the agent, and not to its engine."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def ended(self) -> None:
        """Wait until a killed agent is gone; its engine goes with it."""
        assert self._process is not None
        await self._process.wait()

    async def __aexit__(self, *_error: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def main(server_id: str, controller: str, trainer: str, model: str, run: str, token: str) -> None:
    from support.redis_server import free_port

    agent = GenerationAgent(
        AgentSettings(
            server_id=server_id, job="test", run=run, token=token, access=token, incarnation="one",
            controller=controller, model_path=Path(model), tokenizer_path=Path(model),
            engine=EmbeddedEngineBlock(max_running_requests=64), engine_port=free_port(), stream_interval=4,
            weight_group=trainer,
        )
    )  # fmt: skip
    await agent.start()
    await agent.run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main(*json.loads(sys.argv[1])))
