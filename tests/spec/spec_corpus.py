"""The corpus of job files: what each expects, from the comments at its top.

`# expect: field F` a field error at F; `# expect: rule R` a broken rule that is an error; `# expect: warning R`;
`# expect: facts {…}` what is known beside the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import yaml
from areal.spec import Facts

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Case:
    path: Path
    fields: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)


def read_case(path: Path) -> Case:
    case = {"field": [], "rule": [], "warning": [], "facts": []}
    for line in path.read_text().splitlines():
        if line.startswith("# expect: "):
            kind, _, value = line.removeprefix("# expect: ").partition(" ")
            case[kind].append(value)
    given = yaml.safe_load(case["facts"][0]) if case["facts"] else {}
    facts = Facts(**{name: frozenset(value) if isinstance(value, list) else value for name, value in given.items()})
    return Case(path, case["field"], case["rule"], case["warning"], facts)


def cases(kind: str) -> list[Case]:
    return [read_case(path) for path in sorted((CORPUS / kind).glob("*.yaml"))]
