"""`areal prepare`: a job's datasets as snapshots, with what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from areal.yaml_file.document import Document


def prepare_command(document: Document, overrides: Sequence[str], out: Path | None) -> None:
    """Write the snapshots that the job's runs would use; one that is up to date is left alone."""
    from areal.plan import RunLayout
    from areal.plan.resolve import recipe_file, verifier_of
    from areal.spec.load import job_from
    from areal.stage.datasets import prepare_split, required_columns

    job, job_file = job_from(document, overrides), document.path
    base_dir = job_file.absolute().parent
    recipe = recipe_file(job, base_dir)
    required = required_columns(job, verifier_of(job, recipe))
    root = out or RunLayout(Path("runs") / job.metadata.name).dataset
    console = Console()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("split", "rows", "digest", "columns", "directory"):
        table.add_column(title)
    dataset = job.spec.dataset
    for split, source in (("train", dataset.train), ("evaluation", dataset.evaluation)):
        if source is None:
            continue
        with console.status(f"reading {split}") as status:

            def show(rows: int, split: str = split, status: object = status) -> None:
                status.update(f"reading {split}: {rows} rows")  # type: ignore[attr-defined]

            snapshot = prepare_split(source, root / split, split, base_dir, recipe, required, show)
        columns = ", ".join(f"{name} ({kind})" for name, kind in snapshot.columns.items())
        table.add_row(split, str(len(snapshot)), snapshot.digest[:12], columns, str(root / split))
    console.print(table)
