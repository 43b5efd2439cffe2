"""`areal logs`: the logs of all roles of a run as one stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from areal.cli.runs import existing
from areal.plan.layout import RunLayout
from areal.stage.log_stream import Follower, log_files, merged, since

_LOOK_S = 0.3  # between looks of --follow
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def logs_command(run: Path, roles: Sequence[str], age: str | None, last: int | None, *, follow: bool) -> None:
    """Print what the roles logged, by time; `last` lines of it at most; with `follow` go on until Ctrl-C."""
    files = log_files(RunLayout(existing(run)).logs, roles)
    not_before = since(age, time.time()) if age is not None else 0.0
    follower = Follower(files)
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(role) for role in files)
    colours = {role: _COLOURS[number % len(_COLOURS)] for number, role in enumerate(files)}

    def show(role: str, text: str) -> None:
        console.print(Text(f"{role:<{width}} ", style=colours[role]) + Text(text))

    lines = merged(files, not_before)
    for line in deque(lines, last) if last is not None else lines:
        show(line.role, line.text)
    while follow:
        for role, text in follower.new():
            show(role, text)
        time.sleep(_LOOK_S)
