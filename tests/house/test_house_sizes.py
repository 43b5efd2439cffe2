"""Files that people write stay short enough to be read as a whole."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 500
WRITTEN = ("*.py", "*.md", "*.proto", "*.toml", "*.yaml", "*.yml", "*.json", "*.sh", "Makefile", "Dockerfile*")
TREES = ("bench", "charts", "deploy", "docker", "docs", "examples", "protos", "services", "tests", "tools", "trainer")
GENERATED = (
    "services/areal/v1/*", "charts/areal/files/*", "charts/areal/values.schema.json",
    "tests/operator/operator/golden/*", "tests/chart/policies/k*.yaml", "docs/rljob.md", "docs/cli.md",
    "docs/python.md",
)  # fmt: skip


def written(name: str) -> bool:
    return any(fnmatch(name.rpartition("/")[2], pattern) for pattern in WRITTEN) and not any(
        fnmatch(name, pattern) for pattern in GENERATED
    )


def test_no_file_that_people_write_is_longer_than_five_hundred_lines() -> None:
    files = [path for tree in TREES for path in (ROOT / tree).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    names = [name for path in files if written(name := str(path.relative_to(ROOT)))]
    lines = {name: (ROOT / name).read_text().count("\n") for name in names}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert len(lines) > 500, "the trees have other names now"
