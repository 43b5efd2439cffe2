"""Generator of docs/dataflow.md and its pictures from the graphs that the trainer runs."""

from __future__ import annotations

from typing import Any

from areal.dataflow import draw
from areal.dataflow.builtin import graph_of
from areal.dataflow.stages import Graph
from areal.spec.job import RLJob
from areal.spec.resolved_algorithm import NAMES
from areal.spec.supervised import USUAL_RATES

_HEAD = """# The step as a graph

A step is stages that pass on named columns. Each column that a stage reads is matched with the one stage that writes
it before, by name, axis and type. The trainer walks this graph: it gives a stage the columns that it reads and no
others, and refuses what is written under another name, with another length or type than declared. `areal check
job.yaml --graph -` prints a job's own; `--graph step.svg` draws it.

What is made for each sample crosses the ledger; what is made once a step lives for that step. The dashed arrow is the
one edge back: generation has weights of an earlier step, at most η versions old. This page is made from the code:
`make docs`.
"""


def graphs() -> list[tuple[str, Graph, list[str]]]:
    """(file name, graph, the trainings that run it): all built-in trainings at their defaults."""
    jobs = {name: _algorithm(name=name) for name in NAMES}
    jobs["GRPO with miniBatches: 4"] = _algorithm(name="GRPO", miniBatches=4)
    jobs |= {name: _rows(name) for name in USUAL_RATES}
    found: list[tuple[str, Graph, list[str]]] = []
    for name, job in jobs.items():
        graph = graph_of(job.spec)
        same = next((names for _, known, names in found if known == graph), None)
        if same is not None:
            same.append(name)
        else:
            short = name.split()[0].lower().replace("+", "p")
            found.append((f"dataflow-{short}", graph, [name]))
    return found


def files() -> dict[str, str]:
    """Every generated file of docs/ by its path there."""
    made, parts = {}, [_HEAD]
    for file, graph, names in graphs():
        title = ", ".join(names)
        made[f"img/{file}.svg"] = draw.svg(graph, title)
        parts.append(f"## {title}\n\n![Stages of {title}](img/{file}.svg)\n\n```text\n{draw.text(graph)}```\n")
    return {"dataflow.md": "\n".join(parts), **made}


def _algorithm(**fields: Any) -> RLJob:
    sampling = {"sampling": {"maxNewTokens": 1024}}
    if fields["name"] == "OnPolicyDistillation":
        fields["teacher"] = {"path": "t"}
    return _job(algorithm={"batchSize": 8, "maxSteps": 8, **fields}, rollout=sampling)


def _rows(training: str) -> RLJob:
    teacher = {"teacher": {"path": "t"}} if training == "Distillation" else {}
    return _job(training={"name": training, "batchSize": 8, **teacher})


def _job(**blocks: Any) -> RLJob:
    spec = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t.jsonl"}}, **blocks}
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "job"}}
    return RLJob.model_validate({**head, "spec": spec})
