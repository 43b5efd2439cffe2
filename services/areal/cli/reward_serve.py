"""`areal reward serve`: the reward service on this machine, without a job."""

from __future__ import annotations

import asyncio
from pathlib import Path

from areal_judge.judge.stack import StackSettings
from areal_judge.sandbox.values import Tier
from areal_judge.server.main import ServeOptions, Serving, serve
from rich.console import Console

from areal.observe import logs


def serve_command(
    host: str,
    port: int,
    http_port: int,
    metrics_port: int | None,
    min_tier: str,
    token_file: Path | None,
    slots: int,
    highest_tier: str = "T4",
    boxes: int = 0,
) -> int:
    """Serve until stopped; the exit code."""
    logs.setup("reward", "reward-service", json=False)
    stack = StackSettings(min_tier=Tier[min_tier], highest_tier=Tier[highest_tier], slots=slots)
    console = Console()

    def told(serving: Serving) -> None:
        console.print(
            f"judging with tier {serving.tier}: gRPC on {serving.grpc}, HTTP on {serving.http}", highlight=False
        )
        known = f"in {token_file}" if token_file else serving.token
        console.print(f"token {known}", highlight=False, soft_wrap=True)

    return asyncio.run(serve(ServeOptions(host, port, http_port, metrics_port, token_file, stack, boxes), told))
