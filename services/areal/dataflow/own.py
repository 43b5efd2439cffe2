"""A recipe's own dataflow: `graph(ctx)` puts stages of its own into a job's step, or other functions into its stages.

Owns what such a graph may be. It is matched, and each function that needs no model is tried on a made-up batch, before
anything runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from areal.dataflow.builtin import ADVANTAGES, REWARDS, graph_of
from areal.dataflow.running import StageInputs, check_written, inputs_of, run_stage
from areal.dataflow.stages import Column, Graph, Stage, problems
from areal.errors import DataError
from areal.spec.job import JobSpec

_LENGTHS = (5, 4, 6, 3)  # of a made-up batch's sequences
_FIX = "docs/rl-training.md shows a graph with a stage of its own"
_TAKERS = {"advantages": ("compute_advantages", REWARDS), "update policy": ("compute_loss", ADVANTAGES)}
"""Built-in stages that may read more: the hook that uses it, and the column in whose place one such may stand."""


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
        writes: tuple[Column, ...] = (),
        kind: Literal["compute", "infer", "update"] = "compute",
        model: str = "",
        start: Callable[[Any], None] | None = None,
    ) -> Stage:
        """A stage of the recipe's own; every process that trains runs it once a step, and all must get the same.

        One that asks (`infer`) or trains (`update`) a model names it. `start(models)` is called once, by the trainer
        alone, before a checkpoint is loaded: what it makes of `models` is in the checkpoints.
        """
        return Stage(name, kind, reads, writes, model, run=run, start=start)


def own_graph(make: Callable[[GraphContext], Any], spec: JobSpec, hooks: frozenset[str]) -> Graph:
    """The graph that a recipe's `graph(ctx)` makes, checked and tried. Raises DataError that says what is wrong.

    `hooks` names those that the job has: `compute_advantages` and `compute_loss` find own columns in `batch.columns`.
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
    if wrong := problems(graph) or _refused(graph, builtin, hooks):
        raise DataError(f"graph(ctx): {'; '.join(wrong)}", fix=_FIX)
    _try(graph)
    return graph


def more_columns(graph: Graph, builtin: Graph, name: str) -> tuple[Column, ...]:
    """The columns that a built-in stage reads beside its usual ones."""
    usual = builtin.stage(name).reads
    return tuple(column for column in graph.stage(name).reads if column not in usual)


def stand_in(graph: Graph, builtin: Graph, name: str) -> str:
    """The column that the advantages take for rewards, or the policy's update for advantages."""
    usual = _TAKERS[name][1]
    if usual in graph.stage(name).reads:
        return usual.name
    return next(column.name for column in more_columns(graph, builtin, name) if _alike(column, usual))


def _refused(graph: Graph, builtin: Graph, hooks: frozenset[str]) -> list[str]:
    """Refusals of a graph, beside what never fits."""
    found: list[str] = []
    names = [stage.name for stage in graph.stages]
    if missing := [stage.name for stage in builtin.stages if stage.name not in names]:
        return [f"{missing[0]} is missing: a built-in stage may get another function, and stays"]
    usual = {stage.name: stage for stage in builtin.stages}
    for stage in graph.stages:
        if stage.run is not None:
            found += _own_refused(stage)
        elif stage.name not in usual:
            found.append(f"{stage.name} has no function")
        elif stage.name in _TAKERS:
            found += _taker_refused(graph, usual[stage.name], hooks)
        elif stage != usual[stage.name]:
            found.append(f"{stage.name} is built in and stays as it is, or gets a function of yours")
    return found


def _own_refused(stage: Stage) -> list[str]:
    found = []
    if stage.clock != "step" or stage.kind not in ("compute", "infer", "update"):
        return [f"{stage.name} runs outside the step: it can't have a function of the recipe's"]
    if bool(stage.model) == (stage.kind == "compute"):
        found.append(f"{stage.name} names a model when it asks or trains one (kind infer, update), and only then")
    if any(column.axis not in ("sequence", "token", "model") for column in stage.writes):
        found.append(f"{stage.name} writes columns by sequence or by token")
    return found


def _taker_refused(graph: Graph, usual: Stage, hooks: frozenset[str]) -> list[str]:
    """Of the stages that may read more than they always do."""
    stage, (hook, replaced) = graph.stage(usual.name), _TAKERS[usual.name]
    if replace(stage, reads=usual.reads) != usual:
        return [f"{stage.name} writes what it always writes"]
    missing = [column for column in usual.reads if column not in stage.reads]
    added = [column for column in stage.reads if column not in usual.reads]
    instead = [column for column in added if _alike(column, replaced)]
    if missing not in ([], [replaced]) or (missing and len(instead) != 1):
        return [
            f"{stage.name} reads what it always reads; {replaced.name} alone may be replaced, by one column of "
            f"{replaced.dtype} by {replaced.axis}"
        ]
    unused = added if not missing else [column for column in added if column != instead[0]]
    if unused and hook not in hooks:
        names = ", ".join(column.name for column in unused)
        return [f"nothing uses {names}: let it replace {replaced.name}, or define {hook} with batch.columns"]
    return []


def _alike(column: Column, usual: Column) -> bool:
    return (column.axis, column.dtype) == (usual.axis, usual.dtype)


def _try(graph: Graph) -> None:
    """Run the own stages that compute on a made-up batch; of another stage's columns there are ones."""
    offsets = np.cumsum([0, *_LENGTHS]).astype(np.int64)
    lengths = {"sequence": len(_LENGTHS), "token": int(offsets[-1])}
    known: dict[str, NDArray[Any]] = {}
    for stage in graph.stages:
        written: Mapping[str, Any] = {
            column.name: np.ones(lengths[column.axis], column.dtype)
            for column in stage.writes
            if column.axis in lengths
        }
        if stage.run is not None and stage.kind == "compute" and stage.start is None:
            written = run_stage(stage, stage.run, inputs_of(stage, known, offsets))
            check_written(stage, written, lengths)
        known |= written


def json_of_graph(graph: Graph) -> list[dict[str, Any]]:
    """A graph as JSON, for a picture: of a function of the recipe's only its presence, as the model's name."""
    stages = []
    for stage in graph.stages:
        model = stage.model if stage.run is None else ", ".join(filter(None, ["recipe", stage.model]))
        told = asdict(replace(stage, run=None, start=None, model=model))
        stages.append({name: value for name, value in told.items() if name not in ("run", "start")})
    return stages


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
