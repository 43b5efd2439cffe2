#!/usr/bin/env python3
"""tools/house.py [--json] — prints the counts of the house: how many things a reader has to hold in the head.

Beside each stand its value at the commit `BEFORE_COMMIT`, measured by this script, and the limit that
tests/house/test_house_counts.py holds. Everything is read from the files of the checkout that this lies in; nothing of
the product is imported. With --names it prints which modules share a class name, which names are participles, which
small modules have one reader, and which fields no page or example mentions.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("services", "trainer")
CORE = "areal"
BESIDE = {"areal_judge": "judge", "areal_operator": "operator", "areal_view": "view"}
CRD = "charts/areal/files/crds/rljobs.areal.dev.yaml"
GENERATED = {
    "rljob.md", "cli.md", "values.md", "alerts.md", "conditions.md", "algorithms.md", "dataflow.md", "grafana.md",
}  # fmt: skip
SMALL = 60  # lines of a module that belongs into its only reader
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
ENTRIES = {"main", "__main__", "commands"}  # modules that are started, or named by a string
FIRST_RANK = {"desk", "_desk", "first", "_first"}  # what only the first rank of a gang has

PARTICIPLES = re.compile(
    "asked|given|told|served|made|shown|kept|held|known|seen|sent|written|drawn|taken|begun|found|lost|said|gone|built|"
    "spent|chosen|broken|met|paid|bought|caught|taught|brought|heard|meant|worn|stuck|struck|thrown|grown"
)
NO_PARTICIPLE = {"Need", "Speed", "Seed", "Feed", "Embed", "Bed", "Red", "Shed", "Weed", "Exceed", "Proceed"}


# ---- the product's modules


@cache
def sources() -> Mapping[Path, str]:
    """Hand-written modules of the product with their text."""
    found = [path for tree in PRODUCT for path in sorted((ROOT / tree).rglob("*.py")) if "v1" not in path.parts]
    return {path: path.read_text(encoding="utf-8") for path in found}


@cache
def trees() -> Mapping[str, ast.Module]:
    """The syntax tree of every module, by its dotted name."""
    return {name_of(path): ast.parse(text) for path, text in sources().items()}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """For each module the modules of the product that it imports, anywhere in it."""
    known = {**trees(), "areal.v1": None}
    found: dict[str, frozenset[str]] = {}
    for name, tree in trees().items():
        named: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
                outer = {node.module} & known.keys() if len(inner) < len(node.names) else set()
                named |= inner | outer
        found[name] = frozenset(named - {name})
    return found


def room(module: str) -> str:
    """The package below the core that a module is in; "" of a module beside the packages."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == CORE and (ROOT / "services" / CORE / parts[1]).is_dir() else ""


def rooms() -> set[str]:
    return {room(module) for module in trees()} - {"", "v1"}


def arrows() -> set[tuple[str, str]]:
    """(room, room that it imports), of the core."""
    pairs = ((room(module), room(other)) for module, others in imports().items() for other in others)
    return {(here, there) for here, there in pairs if here and there and here != there and "v1" not in (here, there)}


def files_that_import(package: str) -> int:
    """Files of the core that import a package beside it; what is named by a string is no import."""
    mine = {name: others for name, others in imports().items() if name.split(".")[0] == CORE}
    return sum(any(other.split(".")[0] == package for other in others) for others in mine.values())


def small_with_one_reader() -> list[str]:
    """Modules under 60 lines that one other module imports, but for entries, packages and the command table's."""
    readers: dict[str, set[str]] = defaultdict(set)
    for module, others in imports().items():
        for other in others:
            readers[other].add(module)
    lines = {name_of(path): text.count("\n") for path, text in sources().items() if path.name != "__init__.py"}
    return sorted(
        name
        for name, count in lines.items()
        if count < SMALL and len(readers[name]) == 1 and name.rpartition(".")[2] not in ENTRIES
    )


# ---- names


@cache
def classes() -> Mapping[str, tuple[str, ...]]:
    """For each class name the modules that define it; `_Bar` and `Bar` are one name to who reads a traceback."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(module)
    return {name: tuple(modules) for name, modules in found.items()}


def is_participle(name: str) -> bool:
    """Whether a class is named by a participle alone: `Asked`, not `FloorChanged`, which is an event."""
    name = name.lstrip("_")
    if len(re.findall(r"[A-Z][a-z0-9]*", name)) != 1:
        return False
    return PARTICIPLES.fullmatch(name.lower()) is not None or (
        name.endswith("ed") and name not in NO_PARTICIPLE and len(name) > 3
    )


def participles() -> list[str]:
    return sorted(name for name in classes() if is_participle(name))


def riddles() -> int:
    """Functions whose docstring begins with a question's word instead of the term for the thing."""
    functions = (node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, FUNCTION))
    return sum((ast.get_docstring(node) or "").startswith(("What ", "How ", "Where ")) for node in functions)


def first_rank_tests() -> int:
    """Comparisons with None of what the trainer's first rank alone has."""
    found = 0
    for module, tree in trees().items():
        for node in ast.walk(tree) if module.startswith("areal_trainer") else ():
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
                name = getattr(node.left, "attr", getattr(node.left, "id", ""))
                found += name in FIRST_RANK and ast.unparse(node.comparators[0]) == "None"
    return found


# ---- the job file


@cache
def definition() -> dict[str, Any]:
    """The committed definition of the job, which is made from the models."""
    return yaml.load((ROOT / CRD).read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def job_schema() -> dict[str, Any]:
    return definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def leaves(schema: dict[str, Any]) -> Iterator[str]:
    """Names of all fields below a block that are no blocks, of the items of lists too, each as often as it is there."""
    for name, field in schema["properties"].items():
        inner = field.get("items", field)
        if "properties" in inner:
            yield from leaves(inner)
        else:
            yield name


def unmentioned() -> list[str]:
    """Names of fields that are in no hand-written page and in no example."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED]
    pages += [ROOT / "README.md", *(ROOT / "examples").rglob("*.yaml"), *(ROOT / "examples").rglob("*.md")]
    words = {word for path in pages for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    return sorted({*leaves(job_schema())} - words)


def crd_kb() -> float:
    """Size of the job's definition as JSON, which is what client-side apply writes into an annotation."""
    return round(len(json.dumps(definition(), separators=(",", ":"), ensure_ascii=False).encode()) / 1000, 1)


# ---- the table


BEFORE_COMMIT = "d78ecee"
BEFORE: dict[str, float] = {
    "product lines": 101013,
    "product files": 875,
    "rooms in the core": 36,
    "arrows between them": 160,
    "pairs of rooms that import each other": 1,
    "files of the core that import the judge": 14,  # right after these were taken out of the core
    "files of the core that import the operator": 5,
    "files of the core that import the view": 10,
    "modules under 60 lines with one reader": 80,
    "class names that two classes have": 125,
    "class names that more have": 36,
    "participles as class names": 62,
    "docstrings that begin with a question": 348,
    "tests for the first rank": 37,
    "CRD, kB of JSON": 233.9,
    "leaf fields of the job file": 424,
    "fields of algorithm": 48,
    "fields without a hand-written word": 27,
}
LIMITS: dict[str, float] = {
    "product lines": 116000,
    "product files": 830,
    "rooms in the core": 26,
    "arrows between them": 110,
    "pairs of rooms that import each other": 0,
    "files of the core that import the judge": 2,
    "files of the core that import the operator": 0,
    "files of the core that import the view": 2,
    "modules under 60 lines with one reader": 20,
    "class names that two classes have": 40,
    "class names that more have": 0,
    "participles as class names": 0,
    "docstrings that begin with a question": 250,
    "tests for the first rank": 5,
    "CRD, kB of JSON": 190,
    "leaf fields of the job file": 340,
    "fields of algorithm": 18,
    "fields without a hand-written word": 0,
}


@cache
def counts() -> dict[str, float]:
    """Every count by its name, in the table's order."""
    edges = arrows()
    shared = Counter(min(len(modules), 3) for modules in classes().values())
    return {
        "product lines": sum(text.count("\n") for text in sources().values()),
        "product files": len(sources()),
        "rooms in the core": len(rooms()),
        "arrows between them": len(edges),
        "pairs of rooms that import each other": len({frozenset(edge) for edge in edges if edge[::-1] in edges}),
        **{f"files of the core that import the {short}": files_that_import(name) for name, short in BESIDE.items()},
        "modules under 60 lines with one reader": len(small_with_one_reader()),
        "class names that two classes have": shared[2],
        "class names that more have": shared[3],
        "participles as class names": len(participles()),
        "docstrings that begin with a question": riddles(),
        "tests for the first rank": first_rank_tests(),
        "CRD, kB of JSON": crd_kb(),
        "leaf fields of the job file": sum(1 for _ in leaves(job_schema())),
        "fields of algorithm": len(job_schema()["properties"]["algorithm"]["properties"]),
        "fields without a hand-written word": len(unmentioned()),
    }


def rows() -> Iterator[tuple[str, str, str, str]]:
    for name, now in counts().items():
        yield name, *(f"{value:g}" if value is not None else "" for value in (BEFORE.get(name), now, LIMITS.get(name)))


def table(lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"{name:<46}{before:>9}{now:>9}{limit:>9}" for name, before, now, limit in lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:
        print(json.dumps({"before": BEFORE, "now": counts(), "limits": LIMITS}, indent=2))
    elif sys.argv[1:] == ["--names"]:
        for name, modules in sorted(classes().items()):
            if len(modules) > 1:
                print(f"{name}: {', '.join(modules)}")
        print("participles:", *participles())
        print("small:", *small_with_one_reader())
        print("unmentioned:", *unmentioned())
    else:
        print(table([("", "before", "now", "limit"), *rows()]))
