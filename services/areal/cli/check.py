"""`areal check`: what is wrong with a job, with the arithmetic, and what it will do.

Loads the job before it imports what looks at models, datasets and recipes: one with wrong fields is refused at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal.errors import DataError, ExitCode, InfraError
from areal.spec import Finding, RLJob, Severity, explain, for_clusters_only
from areal.spec.load import job_from
from areal.spec.rewrite import rewrite_file
from areal.yaml_file.document import Document


def check_command(
    document: Document, overrides: Sequence[str], *, as_json: bool, model_config: Path | None = None
) -> int:
    """Print findings and the explanation; the exit code is 64 when something refuses the job."""
    job, job_file = job_from(document, overrides), document.path
    from areal.admit.verdict import admit

    base_dir = job_file.absolute().parent
    admission = admit(job, base_dir, Path("runs").absolute() / job.metadata.name, model_config)
    findings = [*admission.findings, *_elsewhere(job)]
    if not admission.faults:
        findings += [*_programs(job, base_dir), *_answers(job, base_dir)]
    refused = any(finding.severity is Severity.ERROR for finding in findings)
    if as_json:
        found = [asdict(finding) for finding in findings]
        print(
            json.dumps(
                {"ok": not refused, "findings": found, "notLookedAt": admission.unseen, "memory": admission.memory},
                indent=2,
            )
        )
    else:
        explained = [] if refused else [*explain(job, scores_itself=admission.scores_itself), *admission.memory]
        _show(job, job_file, findings, explained, refused)
        for what in admission.unseen:
            Console().print(Text(f"not looked at: {what}", style="dim"), soft_wrap=True)
    return int(ExitCode.CONFIG if refused else ExitCode.DONE)


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


def _elsewhere(job: RLJob) -> list[Finding]:
    """What only a cluster has: a job that names such things is for clusters, so they are no errors here."""
    return [
        replace(finding, severity=Severity.WARNING, message=f"only on a cluster: {finding.message}")
        for finding in for_clusters_only(job)
    ]


def _programs(job: RLJob, base_dir: Path) -> list[Finding]:
    """What only a job with programs or boxes can have: a sandbox that is too weak here, rows without usable tests."""
    judges = job.spec.reward.verifier == "code"
    if not judges and not job.spec.rollout.boxes.max_concurrent:
        return []
    from areal.admit.answers import check_suites, rows_of_file
    from areal.admit.facts import sources_of
    from areal.admit.sandbox import sandbox_findings

    findings = []
    if job.spec.runtime_ref is None:  # whoever names a platform means its sandbox, not this machine's
        try:
            findings += sandbox_findings(job)
        except InfraError as error:
            findings.append(Finding("code-here", Severity.WARNING, "spec.reward.code", error.message, error.fix))
    if not judges:
        return findings
    sources = sources_of(job, base_dir)
    for split, path in (("train", sources.train), ("evaluation", sources.evaluation)):
        try:
            if path is not None:
                check_suites(job, rows_of_file(path))
        except DataError as error:
            field = f"spec.dataset.{split}"
            findings.append(Finding("code-suite", Severity.ERROR, field, error.message, error.fix, job.where(field)))
    return findings


def _answers(job: RLJob, base_dir: Path) -> list[Finding]:
    """Expected answers that the verifier math could never compare, among the first rows of files."""
    from areal.admit import answers
    from areal.admit.facts import sources_of

    if job.spec.reward.verifier != "math" or not answers.installed():
        return []
    findings = []
    sources = sources_of(job, base_dir)
    for split, path in (("train", sources.train), ("evaluation", sources.evaluation)):
        rows = ((place, row) for place, row, _ in answers.rows_of_file(path)) if path is not None else ()
        field = f"spec.dataset.{split}"
        try:
            answers.check_golds(
                rows, job.spec.reward.answer_field, budget_s=answers.QUICK_BUDGET_S, limit=answers.FIRST_ROWS
            )
        except DataError as error:
            findings.append(Finding("math-answer", Severity.ERROR, field, error.message, error.fix, job.where(field)))
        except InfraError as error:
            findings.append(Finding("math-answer", Severity.WARNING, field, error.message, error.fix, job.where(field)))
    return findings


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
