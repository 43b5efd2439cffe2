"""Writes every generated file of the chart, the page of its dashboards and the table of roles.

With `--check` it says which differ from the committed.

`python -m deploy [--check]`, from the repository's root.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from deploy import roles
from deploy.chart import pages, schema, values
from deploy.dashboards import boards, page

CHART = Path("charts/areal")
ARCHITECTURE = Path("docs/architecture.md")


def generated() -> dict[Path, str]:
    """Every generated file and what it must hold."""
    described = values.read(CHART / "values.yaml")
    files = {
        CHART / "values.schema.json": _json(schema.schema(described, alert_names())),
        CHART / "README.md": pages.readme((CHART / "README.md").read_text(encoding="utf-8"), described),
        Path("docs/values.md"): pages.reference(described),
        ARCHITECTURE: roles.page(ARCHITECTURE.read_text(encoding="utf-8")),
    }
    made = boards.boards()
    files[Path("docs/grafana.md")] = page.page(made)
    for name, board in made.items():
        files[CHART / "files" / "dashboards" / f"{name}.json"] = _json(board)
    return files


def alert_names() -> list[str]:
    """The alerts of the chart, in their order."""
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


def main(arguments: list[str]) -> int:
    """Write, or check; the exit status."""
    check = arguments == ["--check"]
    if arguments and not check:
        print("usage: python -m deploy [--check]", file=sys.stderr)
        return 64
    stale = [
        path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if check:
            print(f"{path} is not what its sources say: run make chart", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(generated()[path], encoding="utf-8")
            print(f"wrote {path}")
    return 1 if check and stale else 0


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
