"""A recipe's own dataflow: `graph(ctx)` adds stages to a job's step, which the trainer runs before the advantages.

Owns what such a graph may be: the built-in stages as they are, own stages directly before the advantages, each a
function of columns that are there, and the advantages reading what they write. It is matched, and each function is
tried on a made-up batch, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal.dataflow.builtin import REWARDS, graph_of
from areal.dataflow.running import StepColumns
from areal.dataflow.stages import Column, Graph, Stage, problems
from areal.errors import ArealError, BugError, DataError
from areal.spec.job import JobSpec

ADVANTAGES = "advantages"
_LENGTHS = (5, 4, 6, 3)  # of a made-up batch's sequences
_FIX = "docs/training.md shows a graph with a stage of its own"


class StageInputs(Mapping[str, NDArray[Any]]):
    """What an own stage is given: the columns that it reads, by name, read-only.

    Sequence s owns the entries [offsets[s], offsets[s+1]) of a column by token.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], offsets: NDArray[np.int64]) -> None:
        self._columns = {name: _read_only(column) for name, column in columns.items()}
        self.offsets = _read_only(offsets)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True)
class GraphContext:
    """`ctx` of `graph(ctx)`: the job's spec, and the graph that it has without one."""

    spec: JobSpec
    builtin: Graph

    def stage(
        self,
        name: str,
        run: Callable[[StageInputs], Mapping[str, Any]],
        *,
        reads: tuple[Column, ...],
        writes: tuple[Column, ...],
    ) -> Stage:
        """A stage of the recipe's own; every process that trains runs it once a step, and all must get the same."""
        return Stage(name, "compute", reads, writes, run=run)


def own_graph(make: Callable[[GraphContext], Any], spec: JobSpec, *, own_advantages: bool) -> Graph:
    """The graph that a recipe's `graph(ctx)` makes, checked and tried. Raises DataError that says what is wrong.

    `own_advantages`: the recipe has `compute_advantages(batch)`, which finds own columns in `batch.columns`.
    """
    if not spec.is_rl:
        raise DataError(f"graph(ctx) is for RL, this job's training is {spec.training}", fix="remove it")
    builtin = graph_of(spec)
    try:
        graph = make(GraphContext(spec, builtin))
    except DataError:
        raise
    except Exception as error:  # whatever a user's code raises is that code's fault
        raise DataError(f"graph(ctx) fails: {type(error).__name__}: {error}", fix=_FIX) from error
    if not isinstance(graph, Graph):
        raise DataError(
            f"graph(ctx) returns a {type(graph).__name__}, not a graph",
            fix="return ctx.builtin with stages of yours: ctx.builtin.before('advantages', ctx.stage(…))",
        )
    if wrong := problems(graph) or _refused(graph, builtin, own_advantages):
        raise DataError(f"graph(ctx): {'; '.join(wrong)}", fix=_FIX)
    _try(graph)
    return graph


def own_stages(graph: Graph) -> tuple[Stage, ...]:
    """The recipe's stages, in the order in which they run."""
    return tuple(stage for stage in graph.stages if stage.run is not None)


def reward_column(graph: Graph) -> str:
    """The column that the advantages take for rewards."""
    reads = graph.stage(ADVANTAGES).reads
    written = {column for stage in own_stages(graph) for column in stage.writes}
    if REWARDS in reads:
        return REWARDS.name
    return next(column.name for column in reads if column in written and _like_rewards(column))


def run_stage(stage: Stage, inputs: StageInputs, step: StepColumns) -> dict[str, NDArray[Any]]:
    """Run one own stage. Raises DataError when it fails, or writes something else than it declares."""
    assert stage.run is not None
    step.begin(stage.name)
    try:
        written = {name: np.asarray(value) for name, value in stage.run(inputs).items()}
    except ArealError:
        raise  # of the ranks that run it
    except Exception as error:
        raise DataError(
            f"the recipe's stage {stage.name} fails: {type(error).__name__}: {error}", fix="correct its function"
        ) from error
    try:
        step.end(stage.name, written)
    except BugError as error:
        raise DataError(f"the recipe's stage: {error.message}", fix="return each declared column once") from None
    return {name: _read_only(column) for name, column in written.items()}


def _refused(graph: Graph, builtin: Graph, own_advantages: bool) -> list[str]:
    """What a graph may not be, beside what never fits."""
    found = []
    kept = [stage for stage in graph.stages if stage.run is None]
    if [stage.name for stage in kept] != [stage.name for stage in builtin.stages]:
        found.append("the built-in stages stay, in their order; only the recipe's own have a function")
        return found
    for stage, usual in zip(kept, builtin.stages, strict=True):
        if stage.name != ADVANTAGES and stage != usual:
            found.append(f"{stage.name} is built in and stays as it is")
    at = [stage.name for stage in graph.stages].index(ADVANTAGES)
    own = own_stages(graph)
    if graph.stages[at - len(own) : at] != own:
        found.append("own stages stand directly before the advantages")
    for stage in own:
        if stage.kind != "compute" or stage.clock != "step" or stage.model or stage.lagged:
            found.append(f"{stage.name} computes once a step, and names no model: its function has its own")
        if any(column.axis not in ("sequence", "token") for column in stage.writes):
            found.append(f"{stage.name} writes columns by sequence or by token")
    return found or _advantages_refused(graph, builtin, own_advantages)


def _advantages_refused(graph: Graph, builtin: Graph, own_advantages: bool) -> list[str]:
    reads, usual = graph.stage(ADVANTAGES).reads, builtin.stage(ADVANTAGES).reads
    if graph.stage(ADVANTAGES).writes != builtin.stage(ADVANTAGES).writes:
        return ["the advantages write what they always write"]
    missing = [column for column in usual if column not in reads]
    added = [column for column in reads if column not in usual]
    rewards = [column for column in added if _like_rewards(column)]
    if missing not in ([], [REWARDS]) or (missing and len(rewards) != 1):
        return [
            "the advantages read what they always read; rewards alone may be replaced, by one column of float64 by "
            "sequence"
        ]
    unused = added if not missing else [column for column in added if column != rewards[0]]
    if unused and not own_advantages:
        names = ", ".join(column.name for column in unused)
        return [f"nothing uses {names}: let it replace rewards, or define compute_advantages(batch) with batch.columns"]
    return []


def _like_rewards(column: Column) -> bool:
    return (column.axis, column.dtype) == (REWARDS.axis, REWARDS.dtype)


def _try(graph: Graph) -> None:
    """Run the own stages on a made-up batch."""
    offsets = np.cumsum([0, *_LENGTHS]).astype(np.int64)
    lengths = {"sequence": len(_LENGTHS), "token": int(offsets[-1])}
    step = StepColumns(graph, sequences=lengths["sequence"], tokens=lengths["token"])
    known: dict[str, NDArray[Any]] = {}
    for stage in graph.stages:
        if stage.name == ADVANTAGES:
            return
        if stage.run is not None:
            inputs = StageInputs({column.name: known[column.name] for column in stage.reads}, offsets)
            known |= run_stage(stage, inputs, step)
            continue
        made = {
            column.name: np.ones(lengths[column.axis], column.dtype)
            for column in stage.writes
            if column.axis in lengths
        }
        step.given(stage.writes)
        known |= made


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def json_of_graph(graph: Graph) -> list[dict[str, Any]]:
    """A graph as JSON, for a picture: instead of its function a stage of the recipe's has `recipe` for its model."""
    stages = [replace(stage, run=None, model="recipe" if stage.run else stage.model) for stage in graph.stages]
    return [{name: value for name, value in asdict(stage).items() if name != "run"} for stage in stages]


def graph_of_json(stages: Sequence[Mapping[str, Any]]) -> Graph:
    """The reverse."""

    def columns(given: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
        return tuple(Column(**each) for each in given)

    return Graph(
        tuple(
            Stage(**{**each, **{name: columns(each[name]) for name in ("reads", "writes", "lagged")}})
            for each in stages
        )
    )
