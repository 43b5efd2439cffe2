"""Stages of a training step, the columns that they read and write, and the match of the two. Pure.

A stage of the sample clock runs whenever a sample is due, one of the step clock once a step. What the former write
crosses the ledger; what the latter write lives for one step. The one edge back is the policy's weights.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from areal.spec.supervised import Placement

Axis = Literal["row", "sequence", "token", "model"]
Clock = Literal["sample", "step"]
Kind = Literal["data", "generate", "score", "infer", "compute", "update", "publish"]

Place = Placement | Literal["served"]
_PLACES: dict[Place, str] = {"same": "", "offloaded": "offloaded", "served": "served"}


@dataclass(frozen=True)
class Column:
    """A named array with one entry for each of its axis; of a model there is one entry, its weights."""

    name: str
    axis: Axis
    dtype: str


@dataclass(frozen=True)
class Stage:
    """One thing that is run. `model` is whose weights it needs, empty for none; `placement` is where they are.

    Offloaded weights are on the device while the stage runs, in host memory between; served ones behind an address.
    """

    name: str
    kind: Kind
    reads: tuple[Column, ...] = ()
    writes: tuple[Column, ...] = ()
    model: str = ""
    clock: Clock = "step"
    lagged: tuple[Column, ...] = ()  # read as some step before left them
    placement: Place = "same"
    run: Callable[[Any], Mapping[str, Any]] | None = field(default=None, compare=False)  # a recipe's own function
    start: Callable[[Any], None] | None = field(default=None, compare=False)  # makes the models of a recipe's own

    @property
    def where(self) -> str:
        """Its model and where that is, for people; empty without a model."""
        return ", ".join(part for part in (self.model, _PLACES[self.placement]) if part)


@dataclass(frozen=True)
class Graph:
    """The stages in the order in which they run."""

    stages: tuple[Stage, ...]

    def __contains__(self, name: str) -> bool:
        return any(stage.name == name for stage in self.stages)

    def stage(self, name: str) -> Stage:
        """The stage of that name; raises KeyError when there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def before(self, name: str, stage: Stage) -> "Graph":
        """This graph with a stage directly before the one of that name."""
        at = self.stages.index(self.stage(name))
        return Graph((*self.stages[:at], stage, *self.stages[at:]))

    def after(self, name: str, stage: Stage) -> "Graph":
        """This graph with a stage directly after the one of that name."""
        at = self.stages.index(self.stage(name)) + 1
        return Graph((*self.stages[:at], stage, *self.stages[at:]))

    def replacing(self, name: str, stage: Stage) -> "Graph":
        """This graph with another stage in the place of the one of that name."""
        return Graph(tuple(stage if each.name == name else each for each in self.stages))

    def reading(self, name: str, column: Column, *, instead_of: Column | None = None) -> "Graph":
        """This graph with a stage that reads one more column, or another one."""
        stage = self.stage(name)
        reads = tuple(each for each in stage.reads if each != instead_of)
        return self.replacing(name, replace(stage, reads=(*reads, column)))

    def edges(self) -> Iterator[tuple[Stage, Stage, list[Column]]]:
        """(producer, consumer, columns), without the edge back."""
        for at, consumer in enumerate(self.stages):
            for producer in self.stages[:at]:
                if shared := [column for column in consumer.reads if column in producer.writes]:
                    yield producer, consumer, shared


def problems(graph: Graph) -> list[str]:
    """Problems of a graph, a sentence each; none when every read has exactly one producer before it."""
    found = _twice([stage.name for stage in graph.stages], "stage")
    found += _twice([column.name for stage in graph.stages for column in stage.writes], "column")
    written: dict[str, tuple[Stage, Column]] = {}
    updated: set[str] = set()
    trained = {stage.model for stage in graph.stages if stage.kind == "update"}
    for stage in graph.stages:
        if stage.placement != "same" and (stage.kind != "infer" or stage.model in trained):
            words = "only a model that is asked and never trained leaves its ranks"
            found.append(f"{stage.name} can't be {stage.placement}: {words}")
        for wanted in stage.reads:
            found += _unmatched(stage, wanted, written)
        if stage.kind == "infer" and stage.model in updated:
            found.append(f"{stage.name} needs {stage.model} as it was at the start of the step, after its update")
        if stage.kind == "update":
            updated.add(stage.model)
        written |= {column.name: (stage, column) for column in stage.writes}
    read = {column for stage in graph.stages for column in (*stage.reads, *stage.lagged)}
    for stage, column in written.values():
        if column not in read:
            found.append(f"nothing reads {column.name}, which {stage.name} writes")
    for stage in graph.stages:
        for column in stage.lagged:
            if column.name not in written:
                found.append(f"{stage.name} reads {column.name} of an earlier step, and no step writes it")
    return found


def _unmatched(stage: Stage, wanted: Column, written: dict[str, tuple[Stage, Column]]) -> list[str]:
    if wanted.name not in written:
        near = difflib.get_close_matches(wanted.name, written, n=1)
        hint = f" (there is {near[0]})" if near else ""
        return [f"{stage.name} reads {wanted.name}, which no stage before it writes{hint}"]
    producer, column = written[wanted.name]
    if column != wanted:
        return [
            f"{stage.name} reads {wanted.name} as {wanted.dtype} by {wanted.axis}, "
            f"{producer.name} writes it as {column.dtype} by {column.axis}"
        ]
    if stage.clock == "sample" and producer.clock == "step":
        return [f"{stage.name} runs for each sample and reads {wanted.name}, which is there only within a step"]
    return []


def _twice(names: Sequence[str], what: str) -> list[str]:
    return [f"the {what} {name} is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
