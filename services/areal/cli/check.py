"""`areal check`: what is wrong with a job, with the arithmetic, and what it will do; `--graph` draws its stages.

Loads the job before it imports what looks at models, datasets and recipes: one with wrong fields is refused at once.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal.admit.facts import recipe_parts
from areal.admit.recipe_probe import defines
from areal.admit.sources import sources_of
from areal.dataflow import draw
from areal.dataflow.builtin import graph_of
from areal.dataflow.stages import problems
from areal.errors import BugError, ConfigError, ExitCode
from areal.spec import Finding, RLJob, Severity, check, explain, for_clusters_only
from areal.spec.load import job_from
from areal.spec.rewrite import rewrite_file
from areal.yaml_file.document import Document


def check_command(
    document: Document, overrides: Sequence[str], *, as_json: bool, model_config: Path | None = None
) -> int:
    """Print findings and the explanation; the exit code is that of a run that is refused for them."""
    job, job_file = job_from(document, overrides), document.path
    from areal.admit.verdict import admit, examined

    verdict = examined(
        job, admit(job, job_file.absolute().parent, Path("runs").absolute() / job.metadata.name, model_config)
    )
    findings = [  # a job that names what only a cluster has is for clusters, so that is no error here
        *verdict.findings,
        *(
            replace(finding, severity=Severity.WARNING, message=f"only on a cluster: {finding.message}")
            for finding in for_clusters_only(job)
        ),
    ]
    refused = verdict.refused
    if as_json:
        told = {"ok": not refused, "findings": [asdict(finding) for finding in findings], "notLookedAt": verdict.unseen}
        print(json.dumps({**told, "memory": verdict.memory, "readAs": verdict.read_as}, indent=2))
    else:
        explained = (
            [] if refused else [*explain(job, scores_itself=verdict.scores_itself), *verdict.read_as, *verdict.memory]
        )
        _show(job, job_file, findings, explained, refused)
        for what in verdict.unseen:
            Console().print(Text(f"not looked at: {what}", style="dim"), soft_wrap=True)
    return int(verdict.exit_code)


def rewrite_command(document: Document) -> int:
    """Write a file of an earlier release anew, and say what moved; whether the job can run is `check`'s to say."""
    found, console = rewrite_file(document.path), Console()
    for path, said in found.moves:
        console.print(Text(f"{path} {said}"), soft_wrap=True)
    if not found.moves:
        said = "has no field of an earlier release"
    elif found.comments_kept:
        said = f"is rewritten: {len(found.moves)} fields"
    else:
        said = f"is rewritten without its comments: {len(found.moves)} fields; the old file is {document.path}.old"
    console.print(Text(f"{document.path} {said}", style="bold green"), soft_wrap=True)
    return int(ExitCode.DONE)


def _show(
    job: RLJob, job_file: Path, findings: Sequence[Finding], explained: Sequence[tuple[str, str]], refused: bool
) -> None:
    console = Console()
    for finding in findings:
        colour = "red" if finding.severity is Severity.ERROR else "yellow"
        console.print(
            Text.assemble(
                (f"{finding.severity.value}", f"bold {colour}"),
                f" {finding.where or finding.field}: {finding.message}",
                (f" [{finding.rule}]", "dim"),
                ("\n  fix: ", "green"),
                finding.fix,
            ),
            soft_wrap=True,
        )
    if refused:
        console.print(Text(f"\n{job_file} is refused", style="bold red"), soft_wrap=True)
        return
    if findings:
        console.print()
    console.print(Text(f"{job_file} is fine: {job.metadata.name}", style="bold green"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for subject, sentence in explained:
        table.add_row(subject, sentence)
    console.print(table)


def graph_command(document: Document, overrides: Sequence[str], target: str) -> int:
    """Print the graph (`-`) or write it as SVG; returns the exit code. Raises ConfigError for a job that is refused."""
    job = job_from(document, overrides)
    if refused := [finding for finding in check(job) if finding.severity is Severity.ERROR]:
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
