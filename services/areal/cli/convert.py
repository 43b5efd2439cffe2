"""Command `convert`: a foreign configuration as a job file, with the three lists of its keys."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from areal.cli.arguments import AsJson, commands

if TYPE_CHECKING:
    from areal.convert.draft import Draft

app = commands()


class _Framework(StrEnum):
    AREAL = "areal"
    VERL = "verl"
    TRL = "trl"
    OPENRLHF = "openrlhf"


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML, a launch script, or TRL's script or notebook.")],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Keys to override, and what a script takes from its environment."
        ),
    ] = None,
    framework: Annotated[
        _Framework | None, typer.Option("--from", help="Whose file it is; found out unless given.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where job.yaml and recipe.py go; ./NAME unless given.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of the training set, for epochs in steps.")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a configuration of AReaL, verl, TRL or OpenRLHF into a job file and a recipe."""
    from areal.convert.convert import convert as converted
    from areal.convert.convert import lists, write_draft

    draft = converted(file, framework.value if framework else None, given or (), rows)
    written = write_draft(draft, out or Path(draft.name))
    if as_json:
        told = {title: [{"keys": keys, "said": said} for keys, said in rows] for title, rows in lists(draft)}
        files = [str(path) for path in written]
        print(json.dumps({**told, "decide": list(draft.decisions), "written": files}, indent=2))
    else:
        _show(draft, written)


def _show(draft: Draft, written: list[Path]) -> None:
    from rich.console import Console
    from rich.text import Text

    from areal.convert.convert import lists

    console = Console()
    for title, rows in lists(draft):
        console.print(Text(f"{title} ({sum(len(keys) for keys, _ in rows)})", style="bold"))
        for keys, said in rows:
            console.print(Text.assemble("  ", ", ".join(keys), (f" → {said}", "dim")), soft_wrap=True)
    for what in draft.decisions:
        console.print(Text.assemble(("decide ", "bold yellow"), what), soft_wrap=True)
    said = f"wrote {' and '.join(str(path) for path in written)}"
    if draft.decisions:
        said += f"; `areal check` refuses {written[0]} until its {len(draft.decisions)} `# decide:` lines are gone"
    console.print(Text(said, style="bold green"), soft_wrap=True)
