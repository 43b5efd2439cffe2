"""Job files with one field spelled as people spell it, right and wrong: text, so that YAML itself is part of it."""

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


def paths(block: Any = RLJob, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every field of the file that is a cluster's to judge, blocks themselves included."""
    found = []
    for name, field in fields_of(block).items():
        if above == () and name in ("apiVersion", "kind", "metadata"):
            continue
        found.append((*above, name))
        for inner in blocks_in(field.annotation):
            found += paths(inner, (*above, name))
        if item := item_block(field.annotation):
            found += paths(item, (*above, name, "0"))
    return list(dict.fromkeys(found))


class _Spelled(str):
    """Text that stands in the file as it is."""


class _Dumper(yaml.SafeDumper):
    """Writes marks for spelled values, which are replaced afterwards."""


_Dumper.add_representer(_Spelled, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", "SPELLED"))
PATHS = paths()
BASES = sorted((CORPUS / "accepted").glob("*.yaml"))


def generate(random_: random.Random) -> tuple[str, str]:
    """A job file, and what is odd in it."""
    values = yaml.safe_load(random_.choice(BASES).read_text())
    values["metadata"] = {"name": "digits"}
    path, spelling = random_.choice(PATHS), random_.choice(SPELLINGS)
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
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=1 << 16)
    return text.replace("SPELLED", spelling), f"{'.'.join(path)}: {spelling[:40]}"
