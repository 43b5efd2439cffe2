"""Job files with one field spelled as people spell it, at the edge of its limits, or with very much in it.

Text, so that YAML itself is part of it.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import yaml
from areal.spec.block import blocks_in, fields_of, item_block
from areal.spec.job import RLJob
from spec_corpus import CORPUS

SPELLINGS = [
    'yes', 'no', 'y', 'N', 'on', 'Off', 'true', 'TRUE', '"true"', '~', 'null', '', '160', '"160"', "'1'", '1e3',
    '1E-4', '1:40', '2026-11-22', '0x10', '0o17', '0b11', '1_000', '+7', '1.0', '1.5', '-1', '0', '-0.0', '.5', '5.',
    '.inf', '.nan', '[]', '{}', '[y]', '[null]', '[1, 2]', '[0.8, 0.9]', '[a]', '{a: 1}', '{a: null}', '{A b: c}',
    '{yes: no}', '{1: 2}', 'a', 'a b', 'A', '2Gi', '"2Gi"', '1.5Gi', '500m', '1e30', '9223372036854775808', 'exact',
    'math', 'sglang', 'embedded', 'pvc://claim/path', 'pvc://', 'hf://a/b', "x" * 300, "x" * 1100, '𝜋', '"\\t"',
    '!!str 12', '{a: -1}', '{cpu: -1}', '{cpu: 1.5}', '{cpu: 500m, memory: 2Gi}', '{name: a}', '[{name: a}]',
    '[{name: a, value: 1}]', '[{name: a, value: null}]',
]  # fmt: skip


def fields(block: Any = RLJob, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every field of the file that is a cluster's to judge, blocks themselves included."""
    found = {}
    for name, field in fields_of(block).items():
        if above == () and name in ("apiVersion", "kind", "metadata"):
            continue
        found[(*above, name)] = field
        for inner in blocks_in(field.annotation):
            found |= fields(inner, (*above, name))
        if item := item_block(field.annotation):
            found |= fields(item, (*above, name, "0"))
    return found


def edges(field: Any) -> list[str]:
    """The largest and smallest values that a field takes, and the first beyond."""
    found = []
    text = "str" in str(field.annotation)
    for limit in field.metadata:
        for key in ("ge", "gt", "le", "lt"):
            if (bound := getattr(limit, key, None)) is not None:
                found += [f"{bound}", f"{bound - 1}", f"{bound + 1}"]
        for key in ("min_length", "max_length"):
            length = getattr(limit, key, None)
            if length is not None and text:
                found += ["a" * length, "a" * (length + 1), f"{'a' * (length - 1)}𝜋"]
    return found


class _Spelled(str):
    """Text that stands in the file as it is."""


class _Dumper(yaml.SafeDumper):
    """Writes marks for spelled values, which are replaced afterwards."""


_Dumper.add_representer(_Spelled, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", "SPELLED"))
FIELDS = fields()
FILES_READ = {path for path in FIELDS if path[-1] == "chatTemplate"}  # on this machine, which a server can't
EDGED = {path: values for path, field in FIELDS.items() if (values := edges(field))}
ROLES = [path[-1] for path in FIELDS if len(path) == 3 and path[1] == "podTemplate"]
BASES = sorted((CORPUS / "accepted").glob("*.yaml"))


def many(random_: random.Random) -> dict[str, Any]:
    """Patches of all roles' pods with about as much in one of their fields as is allowed."""
    kind = random_.choice(["env", "labels", "annotations", "nodeSelector", "tolerations"])
    length = random_.choice([1, 60, 63, 163, 200, 253, 254])
    count = random_.choice([16, 32, 33, 64, 65])
    names = [f"{number:a<4}" + "a" * (length - 4) for number in range(count)]
    if random_.random() < 0.2:
        names[-1] = names[0]
    if kind == "env":
        value: Any = [{"name": f"A{name}"[:length], "value": "a"} for name in names]
    elif kind == "tolerations":
        value = [{"key": name, "operator": "Exists"} for name in names]
    else:
        prefix = random_.choice(["", "example.com/", f"{'a' * (length - 1)}b/"])
        value = {f"{prefix}{name[:63]}": "b" for name in names}
    return {role: {kind: value} for role in random_.sample(ROLES, random_.choice([1, 3, len(ROLES)]))}


def generate(random_: random.Random) -> tuple[str, str]:
    """A job file, and what is odd in it."""
    values = yaml.safe_load(random_.choice(BASES).read_text())
    values["metadata"] = {"name": "digits"}
    shape = random_.random()
    if shape < 0.05:
        values["spec"]["podTemplate"] = many(random_)
        return yaml.safe_dump(values, sort_keys=False), "very much in podTemplate"
    if shape < 0.1:
        source = {"task": "leg_counting", "size": 3, "config": {"x": _Spelled("SPELLED")}}
        values["spec"]["dataset"]["train"] = {"reasoningGym": source}
        spelling = random_.choice(SPELLINGS)
        return _text(values, spelling), f"a free value: {spelling[:40]}"
    path = random_.choice([each for each in (EDGED if shape < 0.4 else FIELDS) if each not in FILES_READ])
    spelling = random_.choice(EDGED[path] if shape < 0.4 else SPELLINGS)
    holder: Any = values
    for name, following in pairwise(path):
        inner = holder[int(name)] if isinstance(holder, list) else holder.get(name)
        if following == "0":
            inner = inner if isinstance(inner, list) and inner and isinstance(inner[0], dict) else [{}]
        elif not isinstance(inner, dict):
            inner = {}
        holder[int(name) if isinstance(holder, list) else name] = inner
        holder = inner
    holder[path[-1]] = _Spelled("SPELLED")
    return _text(values, spelling), f"{'.'.join(path)}: {spelling[:40]}"


def _text(values: dict[str, Any], spelling: str) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=1 << 16).replace("SPELLED", spelling)
