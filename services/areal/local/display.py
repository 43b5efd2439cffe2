"""Shows a run while it goes on: a live picture on a terminal, lines in a pipe. Owns when something is printed.

Also watches for stalls: a run that says for some time that it can't go on without help is ended, with its own words.
"""

import asyncio
import io
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO, cast

from rich import live as terminal
from rich.console import Console

from areal.errors import Kind
from areal.local import view
from areal.local.status import RunView, StatusSource
from areal.observe.live import Diagnosis

_EVERY_S = 1.0  # one picture; each costs a few milliseconds of the cores that train
_LINE_STEPS = 10
_LINE_S = 5.0
_QUIET_S = 30.0  # a line at least this often, however little happens
_PATIENCE_S = 60.0  # with a stalled run: a refused version may be replaced by the next one
_PATIENCE_WITH_DATA_S = 5.0  # what rows or the recipe are at fault for, time doesn't mend


class LineSchedule:
    """Decides when a line is due: after ten steps, after five seconds with news, after thirty without."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._step = -1
        self._said = ("", "", "")
        self._stood_at = 0.0  # when the newest step was seen

    def due(self, shown: RunView, now: float) -> str | None:
        """The line to print now, if any."""
        text = view.line(shown)
        said = _without_time(text.removesuffix(view.trouble(shown.live)), shown.live.cause)
        news = said != self._said
        waited = now - self._at
        if shown.live.step != self._step:
            self._stood_at = now
        if shown.live.step - self._step < _LINE_STEPS and not (waited >= _LINE_S and news) and waited < _QUIET_S:
            return None
        self._at, self._step, self._said = now, shown.live.step, said
        stood = now - self._stood_at
        return f"{text} · no step for {stood:.0f} s" if stood >= _QUIET_S else text


def _without_time(text: str, cause: Diagnosis | None) -> tuple[str, str, str]:
    """The line and its cause, without how long both have lasted."""
    return text.lstrip().partition("  ")[2], cause.cause if cause else "", cause.role if cause else ""


class Display:
    """Shows what `source` tells until it is cancelled. `newest` is the last picture."""

    def __init__(
        self,
        source: StatusSource,
        console: Console,
        on_stall: Callable[[str, Kind], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._console = console
        self._on_stall = on_stall
        self._clock = clock
        self._stalled_since: float | None = None
        self.newest: RunView | None = None
        self.note = ""  # shown below the picture

    async def run(self) -> None:
        """Show and watch, for ever."""
        if self._console.is_terminal:
            with terminal.Live(console=self._console, auto_refresh=False, transient=True) as live:
                while True:
                    live.update(view.render(await self._look(), self.note), refresh=True)
                    await asyncio.sleep(_EVERY_S)
        lines = LineSchedule()
        while True:
            if (text := lines.due(await self._look(), self._clock())) is not None:
                self._console.print(text, highlight=False, markup=False, soft_wrap=True)
            await asyncio.sleep(_EVERY_S)

    async def _look(self) -> RunView:
        self.newest = await self._source.view()
        live, now = self.newest.live, self._clock()
        if not live.stalled:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since >= (
            patience := _PATIENCE_WITH_DATA_S if live.stalled_by is Kind.DATA else _PATIENCE_S
        ):
            self._on_stall(f"stalled for {patience:g} s: {live.stalled}", live.stalled_by)
        return self.newest


# ---- A console that may go away: a closed pipe or terminal ends the printing, never the run


class LossyStream(io.TextIOBase):
    """A text stream that drops everything from the first failed write on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return not self.lost and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not self.lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._lose()
        return len(text)

    def flush(self) -> None:
        if not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lose()

    def _lose(self) -> None:
        """Write to nowhere: what is still buffered would fail again when the interpreter ends."""
        self.lost = True
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            return


def lossy_console(*, stderr: bool = False) -> Console:
    """Standard output, or error, as a console that outlives its terminal."""
    stream = (sys.stderr if stderr else sys.stdout) or open(os.devnull, "w")  # noqa: SIM115 (there is none where it was closed before the start)
    return Console(file=cast(TextIO, LossyStream(stream)))
