"""Executor of a step's graph: runs its stages in order and keeps the columns that they write.

Promises that a stage is given the columns that it reads and no others, and that what it writes is what it declares, by
name, length and type, and finite wherever a gradient can come from it. Knows no model: who runs a graph gives the
functions of the built-in stages, a recipe's stage has its own.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal.dataflow.stages import Column, Graph, Stage
from areal.errors import ArealError, BugError, DataError

_ELSEWHERE = ("data", "publish")  # kinds of stages that no step runs: its rows are there, its end is the loop's


class MissingColumn(KeyError):
    """A stage asks for a column that it doesn't read."""


class StageInputs(Mapping[str, NDArray[Any]]):
    """What a stage is given: the columns that it reads, by name; a recipe's own can't change them.

    Sequence s owns the entries [offsets[s], offsets[s+1]) of a column by token.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], offsets: NDArray[np.int64], tokens: Any = None) -> None:
        """`tokens` is the whole batch, a `TokenBatch`, where the trainer runs the stage; None where it is tried."""
        self._columns = columns
        self.offsets = read_only(offsets)
        self.tokens = tokens

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise MissingColumn(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


StageFunction = Callable[[StageInputs], Mapping[str, Any]]
"""What a stage does. One with a method `begin`, which returns a function without arguments that gives the columns, is
begun as soon as what it reads is there, and awaited at its turn: for a model that answers from elsewhere."""


class StepRun:
    """One batch on its way through a graph. Every rank walks it alike."""

    def __init__(
        self,
        graph: Graph,
        functions: Mapping[str, StageFunction],
        columns: Mapping[str, Any],
        offsets: NDArray[np.int64],
        tokens: Any = None,
    ) -> None:
        """`functions` of the built-in stages by name; `columns` that are there before the first stage."""
        self.graph = graph
        self.columns: dict[str, NDArray[Any]] = dict(columns)
        self._functions = functions
        self._offsets = offsets
        self._tokens = tokens
        self._length = {"sequence": len(offsets) - 1, "token": int(offsets[-1])}
        self._stages = [stage for stage in graph.stages if stage.clock == "step" and stage.kind not in _ELSEWHERE]
        self._done: set[str] = set()
        self._begun: dict[str, Callable[[], Mapping[str, Any]]] = {}

    def through(self, name: str) -> None:
        """Run what was not run yet, up to and with the stage of that name."""
        self._run(self._upto(name))

    def rest(self) -> None:
        """Run what was not run yet."""
        self._run(self._stages)

    def provide(self, name: str, columns: Mapping[str, Any]) -> None:
        """Take `columns` for what a stage writes: neither it runs any more, nor what stands before it."""
        self._done |= {stage.name for stage in self._upto(name)}
        self.columns |= columns

    def skip(self, name: str) -> None:
        """A stage doesn't run: a caller has put its columns in."""
        self._done.add(name)

    def again(self, kind: str) -> None:
        """Let the first stage of a kind, and all after it, run once more."""
        first = next(at for at, stage in enumerate(self._stages) if stage.kind == kind)
        self._done -= {stage.name for stage in self._stages[first:]}

    def _upto(self, name: str) -> list[Stage]:
        return self._stages[: self._stages.index(self.graph.stage(name)) + 1]

    def _run(self, stages: list[Stage]) -> None:
        ahead = [stage for stage in stages if stage.name not in self._done]
        for at, stage in enumerate(ahead):
            for later in ahead[at:]:
                self._begin(later)
            begun = self._begun.pop(stage.name, None)
            written = begun() if begun is not None else run_stage(stage, self._function(stage), self._inputs(stage))
            check_written(stage, written, self._length)
            self._check_finite(stage, written)
            self.columns |= written
            self._done.add(stage.name)

    def _check_finite(self, stage: Stage, written: Mapping[str, Any]) -> None:
        """Raises DataError for a number that is none: it would make NaN of every weight, or of no step in silence.

        Tokens that no gradient reaches may hold anything.
        """
        for column in stage.writes:
            if column.axis == "model" or not np.issubdtype(written[column.name].dtype, np.floating):
                continue
            odd = ~np.isfinite(written[column.name])
            if column.axis == "token":
                odd &= np.asarray(self.columns.get("loss_mask", True), np.bool_)
            if odd.any():
                raise self._not_finite(stage, column, written[column.name], np.flatnonzero(odd))

    def _not_finite(self, stage: Stage, column: Column, values: NDArray[Any], odd: NDArray[np.int64]) -> DataError:
        place, token = int(odd[0]), ""
        sequence = place
        if column.axis == "token":
            sequence = int(np.searchsorted(self._offsets, place, side="right")) - 1
            token = f", token {place - int(self._offsets[sequence])}"
        owner = f"sequence {sequence}"
        if {"group_ids", "sample_indices"} <= set(self.columns):
            owner = f"sample {self.columns['sample_indices'][sequence]} of group {self.columns['group_ids'][sequence]}"
        return DataError(
            f"the stage {stage.name} gives {column.name} = {values[place]} for {owner}{token} ({len(odd)} such in all)",
            fix="correct the recipe's function, or its rewards, that it comes from"
            if stage.run is not None or stage.kind == "compute"
            else f"the model {stage.model} computes no numbers any more: go back to an earlier checkpoint",
        )

    def _begin(self, stage: Stage) -> None:
        begin = getattr(self._function(stage), "begin", None)
        there = all(column.name in self.columns for column in stage.reads if column.axis != "model")
        if begin is not None and there and stage.name not in self._begun:
            self._begun[stage.name] = begin(self._inputs(stage))

    def _function(self, stage: Stage) -> StageFunction:
        if stage.run is None and stage.name not in self._functions:
            raise BugError(f"the step's stage {stage.name} has no function")
        return stage.run or self._functions[stage.name]

    def _inputs(self, stage: Stage) -> StageInputs:
        return inputs_of(stage, self.columns, self._offsets, self._tokens)


def inputs_of(stage: Stage, columns: Mapping[str, Any], offsets: NDArray[np.int64], tokens: Any = None) -> StageInputs:
    """The columns that a stage reads; as views that can't be written where its function is a recipe's."""
    read = {column.name: columns[column.name] for column in stage.reads if column.axis != "model"}
    if stage.run is not None:
        read = {name: read_only(array) for name, array in read.items()}
    return StageInputs(read, offsets, tokens)


def run_stage(stage: Stage, function: StageFunction, inputs: StageInputs) -> Mapping[str, Any]:
    """Columns that a stage writes, by name. Raises DataError where a recipe's own function fails."""
    if stage.run is None:
        return function(inputs)
    try:
        return {name: np.asarray(value) for name, value in (function(inputs) or {}).items()}
    except ArealError:
        raise
    except MissingColumn as error:
        raise DataError(
            f"the recipe's stage {stage.name} fails: KeyError: {error} is no column that it reads "
            f"({', '.join(sorted(inputs)) or 'none'})",
            fix=f"add the column {error} to what {stage.name} reads",
        ) from error
    except Exception as error:  # whatever a user's code raises is that code's fault
        raise DataError(
            f"the recipe's stage {stage.name} fails: {type(error).__name__}: {error}", fix="correct its function"
        ) from error


def check_written(stage: Stage, written: Mapping[str, Any], length: Mapping[str, int]) -> None:
    """Raises for other columns than declared, other lengths or types: DataError of a recipe's own stage, else BugError.

    `length` is by axis.
    """
    declared = [column for column in stage.writes if column.axis != "model"]
    wrong = ""
    if set(written) != {column.name for column in declared}:
        wrong = f"{stage.name} writes {sorted(written)}, its graph says {sorted(column.name for column in declared)}"
    else:
        wrong = next((said for c in declared if (said := _misfit(stage, c, written[c.name], length[c.axis]))), "")
    if wrong and stage.run is not None:
        raise DataError(f"the recipe's stage: {wrong}", fix="return each declared column once")
    if wrong:
        raise BugError(wrong)


def _misfit(stage: Stage, column: Column, array: Any, length: int) -> str:
    if array.shape == (length,) and array.dtype == column.dtype:
        return ""
    return (
        f"{stage.name} writes {column.name} as {array.dtype}{list(array.shape)}, "
        f"its graph says {column.dtype}[{length}]"
    )


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that can't be written."""
    view = array.view()
    view.flags.writeable = False
    return view
