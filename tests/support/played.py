"""Environments of a child interpreter, played without a worker: a text for each move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from areal.workflow.environment import HostedEnvironment, HostedWorkflow
from areal.workflow.interpreter.client import ChildInterpreter, Target

ROOT = Path(__file__).resolve().parents[2]


def python_of(name: str) -> str:
    """The interpreter of an environment of tools/venv."""
    return str(ROOT / ".cache" / name / "bin" / "python")


@asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Callable[[dict[str, Any]], Any]]:
    """Makes environments of one child: `await make(row)`."""
    child = ChildInterpreter(target).start()
    try:
        yield HostedWorkflow(child).make
    finally:
        child.end()


async def play(environment: HostedEnvironment, moves: Iterable[str]) -> tuple[list[str], float, bool]:
    """All observations, the sum of the rewards, and whether the game ended."""
    first, _ = await environment.reset()
    seen, total, over = [first], 0.0, False
    for move in moves:
        observation, reward, terminated, truncated, _ = await environment.step(move)
        seen.append(observation)
        total += reward
        over = terminated or truncated
        if over:
            break
    await environment.close()
    return seen, total, over
