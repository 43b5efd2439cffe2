"""`python -m tools.pages`, from the repository's root: writes every generated page of docs/ anew."""

from __future__ import annotations

from pathlib import Path

from tools.pages import (
    algorithms,
    command_line,
    conditions,
    dataflow,
    families,
    gpu_proof,
    job_file,
    python_api,
    recovery,
    scale,
    security,
)

DOCS = Path("docs")


def pages() -> dict[str, str]:
    """Every generated file by its path below docs/. Those of the chart are made by tools/chart."""
    return {
        "rljob.md": job_file.render(),
        "conditions.md": conditions.render(),
        "algorithms.md": algorithms.render(),
        "cli.md": command_line.render(),
        "python.md": python_api.render(),
        "gpus.md": gpu_proof.render(),  # a block of it
        "models.md": families.render(),  # a block of it
        "scale.md": scale.render(),  # its tables
        "recovery.md": recovery.render(),  # a block of it
        "security.md": security.render(),  # its table of calls
        **dataflow.files(),
    }


if __name__ == "__main__":
    for path, content in pages().items():
        (DOCS / path).write_text(content, encoding="utf-8")
