"""A progress bar that fills as the accuracy nears its goal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from areal_trainer.tiny.supervised import Accuracy


@contextmanager
def training_bar(until: float, *, quiet: bool) -> Iterator[Callable[[int, float, Accuracy], None]]:
    """Gives the function to report checks to. Nothing is drawn when quiet or not on a terminal."""
    progress = Progress(
        TextColumn("supervised training"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not Console(stderr=True).is_terminal,
    )
    with progress:
        task = progress.add_task("", total=until, figures="starting")

        def report(step: int, loss: float, measured: Accuracy) -> None:
            figures = f"step {step}  loss {loss:.2f}  sampled accuracy {measured.sampled:.2f} of {until:.2f}"
            progress.update(task, completed=min(measured.sampled, until), figures=figures)

        yield report
