"""`areal check --graph`: the stages of a job's step, matched and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from areal.admit.facts import recipe_parts
from areal.admit.recipe_names import defines
from areal.admit.sources import sources_of
from areal.dataflow import draw
from areal.dataflow.builtin import graph_of
from areal.dataflow.stages import problems
from areal.errors import BugError, ConfigError, ExitCode
from areal.spec import Severity, check
from areal.spec.load import job_from
from areal.yaml_file.document import Document


def graph_command(document: Document, overrides: Sequence[str], target: str) -> int:
    """Print the graph (`-`) or write it as SVG; returns the exit code. Raises ConfigError for a job that is refused."""
    job = job_from(document, overrides)
    refused = [finding for finding in check(job) if finding.severity is Severity.ERROR]
    if refused:
        raise ConfigError(f"{refused[0].field}: {refused[0].message}", fix=refused[0].fix)
    graph = graph_of(job.spec)
    recipe = sources_of(job, document.path.absolute().parent).recipe
    if recipe is not None and defines(recipe, "graph"):
        graph = recipe_parts(recipe, job).graph or graph
    if wrong := problems(graph):
        raise BugError(f"the stages don't fit together: {'; '.join(wrong)}")
    if target == "-":
        print(draw.text(graph), end="")
        return int(ExitCode.DONE)
    if not target.endswith(".svg"):
        raise ConfigError(f"--graph {target} is no SVG file", fix="name a file that ends with .svg, or - for text")
    Path(target).write_text(draw.svg(graph, job.metadata.name), encoding="utf-8")
    print(f"wrote {target}")
    return int(ExitCode.DONE)
