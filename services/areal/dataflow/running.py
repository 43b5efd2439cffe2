"""One step's columns as its stages run: nothing is read before it is there, nothing written that isn't declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from areal.dataflow.stages import Column, Graph
from areal.errors import BugError


class StepColumns:
    """Which columns a step has so far. Every stage of the trainer's passes through here."""

    def __init__(self, graph: Graph, *, sequences: int, tokens: int) -> None:
        self._graph = graph
        self._length = {"sequence": sequences, "token": tokens, "model": None, "row": None}
        sampled = (column for stage in graph.stages if stage.clock == "sample" for column in stage.writes)
        self._there: set[Column] = set(sampled)

    def given(self, columns: Iterable[Column]) -> None:
        """Columns that stages before wrote, and that a caller hands on."""
        self._there |= set(columns)

    def begin(self, name: str) -> None:
        """A stage begins. Raises BugError when the graph has none of that name, or when it reads what isn't there."""
        if name not in self._graph:
            raise BugError(f"the step runs {name}, and its graph has no such stage")
        missing = [column.name for column in self._graph.stage(name).reads if column not in self._there]
        if missing:
            raise BugError(f"{name} runs before {', '.join(missing)} is there")

    def end(self, name: str, written: Mapping[str, Any]) -> None:
        """What a stage wrote, by name. Raises BugError for other columns than declared, other lengths or types."""
        stage = self._graph.stage(name)
        names = {column.name for column in stage.writes if column.axis != "model"}
        if set(written) != names:
            raise BugError(f"{name} writes {sorted(written)}, its graph says {sorted(names)}")
        for column in stage.writes:
            if column.axis != "model":
                _fits(name, column, written[column.name], self._length[column.axis])
        self._there |= set(stage.writes)


def _fits(stage: str, column: Column, array: Any, length: int | None) -> None:
    dtype = str(array.dtype).removeprefix("torch.")
    if tuple(array.shape) != (length,) or dtype != column.dtype:
        raise BugError(
            f"{stage} writes {column.name} as {dtype}{list(array.shape)}, its graph says {column.dtype}[{length}]"
        )
