"""Generator of docs/rljob.md from the models and the rules, so that the page never says what the code doesn't."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from areal.spec.block import Mutability, blocks_in, fields_of, item_block, members_of
from areal.spec.check import RULES
from areal.spec.job import RLJob
from areal.spec.quantity import show_bytes
from areal.spec.rules import Severity
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

_HEAD = """# The job file

One file, an `RLJob`, describes a run. `areal check job.yaml` validates and explains it, `areal run job.yaml` runs it.
This page is made from the code: `make docs`.

```yaml
apiVersion: areal.dev/v1alpha1
kind: RLJob
metadata: {name: digits}
spec:
  model: {path: runs/digits-sft/model}
  recipe: {file: examples/digits.py}
  dataset:
    train: {jsonl: data/train.jsonl}
    evaluation: {jsonl: data/heldout.jsonl}
  rollout:
    maxConcurrentRollouts: 128
    maxSampleTokens: 64
    sampling: {temperature: 1.0, maxNewTokens: 12}
  algorithm:
    name: GRPO
    groupSize: 8
    batchSize: 64
    maxSteps: 160
    maxStaleness: 2
  optimizer: {learningRate: 1e-4}
  evaluation: {intervalSteps: 10, rows: 500}
```

**Overrides.** `areal run job.yaml algorithm.maxSteps=20` sets a field below `spec`; `metadata.name=second` and
`spec.algorithm.maxSteps=20` name it from the top. Values are YAML. An unknown field is an error that names the nearest.

**Old files.** A field of an earlier release is an error that names its new place, and `areal check --rewrite job.yaml`
moves them all; [migration](migration.md#a-job-file-of-an-earlier-release) says how.

**Paths.** A relative path is looked for below the current directory first, then below the job file's directory. On a
cluster a relative path is a file of yours that `areal submit` uploads, an absolute one is in the role's image, and
`pvc://claim/path` is on a volume.

**Cluster only.** What the operator obeys and `areal run` ignores says so. Everything there has a default.

**Numbers.** `1e-4` is a number. Sizes in bytes take `Ki`, `Mi`, `Gi`, `Ti` (powers of 1024) or `k`, `M`, `G`, `T`.

**Null.** `null` for a field means that it isn't given, except where the default says otherwise
(`algorithm.advanced.rejection: null`).

## Fields

*May change*: **live** while the run goes on; **on resume** when a run is continued, on a cluster while it is
suspended; **never**: the field says what the run is, and a resumed run must have the same. An empty default means that
the field is required.
"""

_RULES_HEAD = """## Rules

What several fields must satisfy together. An error is refused by `areal check`, `areal run` and the API server alike; a
warning is only said. Rules marked * are not the API server's: they need the recipe, the dataset, the tokenizer or the
model, or know whether a field was given.
"""


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    seen: set[type[BaseModel]] = set()
    _blocks(RLJob, "", parts, seen, skip=("spec",))
    _blocks(blocks_in(fields_of(RLJob)["spec"].annotation)[0], "spec", parts, seen)
    parts.append(_RULES_HEAD)
    parts.append(_table(("rule", "", "what must hold", "reported at"), _rule_rows()))
    return "\n".join(parts)


def _rule_rows() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for rule in sorted(RULES, key=lambda rule: (rule.severity is not Severity.ERROR, rule.id)):
        mark = "" if rule.cel is not None else " *"
        rows.append((f"`{rule.id}`{mark}", str(rule.severity), rule.says, f"`{rule.field.removeprefix('spec.')}`"))
    return rows


def _blocks(
    block: type[BaseModel], path: str, parts: list[str], seen: set[type[BaseModel]], skip: Sequence[str] = ()
) -> None:
    """A section for a block's own fields, then one for each block inside it; a block that is used twice has one."""
    seen.add(block)
    title = path.removeprefix("spec.") or "The top of the file"
    rows, inner = [], []
    for name, field in fields_of(block).items():
        item = item_block(field.annotation)
        members = [item] if item else blocks_in(field.annotation)
        if members:
            inner.append((f"{name}[]" if item else name, members))
        if name in skip or (members and not item and path == "spec"):
            continue
        rows.append((f"`{name}`", _type(field), _default(field), _changes(field), field.description))
    parts.append(f"### {title}\n\n{block.__doc__}\n")
    if skip and path:
        parts.append(f"As above: {', '.join(f'`{name}`' for name in skip)}.\n")
    if rows:
        parts.append(_table(("field", "type", "default", "may change", "meaning"), rows))
    for name, members in inner:
        for member in members:
            if name not in skip and member not in seen:
                tag = f" ({member.union_key}: {_tag(member)})" if len(members) > 1 else ""
                told = () if member is members[0] else _same(members[0], member)
                _blocks(member, f"{path}.{name}{tag}" if path else name, parts, seen, told)


def _same(first: type[BaseModel], other: type[BaseModel]) -> tuple[str, ...]:
    """The fields that a union's member has from the base of both, which were told of the first."""
    fields = fields_of(first)
    return tuple(name for name, field in fields_of(other).items() if name in fields and fields[name] == field)


def _tag(block: Any) -> str:
    return str(get_args(fields_of(block)[block.union_key].annotation)[0])


def _type(field: Any) -> str:
    members = [member for member in members_of(field.annotation) if member is not NoneType]
    unit = field.json_schema_extra["unit"]
    names = []
    for member in members:
        if get_origin(member) is Literal:
            names.append(", ".join(f"`{value}`" for value in get_args(member)))
        elif isinstance(member, type) and issubclass(member, BaseModel):
            names.append("block")
        else:
            names.append(_NAMES.get(get_origin(member) or member, "any"))
    limits = ", ".join(
        f"{sign} {_limit(getattr(limit, key), unit)}"
        for limit in field.metadata
        for key, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if hasattr(limit, key)
    )
    return " or ".join(dict.fromkeys(names)) + (f", {unit}" if unit else "") + (f", {limits}" if limits else "")


def _limit(value: float, unit: str) -> str:
    if unit == "bytes":
        return show_bytes(int(value))
    return "2⁶³" if value == 2**63 else f"{value:g}"


_NAMES: dict[Any, str] = {
    int: "integer", float: "number", str: "text", bool: "true or false", list: "list", dict: "mapping", tuple: "list",
}  # fmt: skip


def _default(field: Any) -> str:
    if field.default_factory is not None:
        made = field.default_factory()
        if isinstance(made, list) and made and isinstance(made[0], BaseModel):
            items = ("{" + ", ".join(f"{k}: {v}" for k, v in item.model_dump().items()) + "}" for item in made)
            return f"`[{', '.join(items)}]`"
        if isinstance(made, BaseModel):
            return (
                f"`{{{', '.join(f'{k}: {v}' for k, v in made.model_dump().items())}}}`" if _small(made) else "as below"
            )
        return f"`{made}`"
    if field.default is PydanticUndefined:
        return ""
    if field.default is None:
        return "—"
    if field.json_schema_extra["unit"] == "bytes":
        return f"`{show_bytes(field.default).replace(' ', '').removesuffix('B')}`"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{list(field.default)}`" if isinstance(field.default, tuple) else f"`{field.default}`"


def _small(block: BaseModel) -> bool:
    values = block.model_dump()
    return 0 < len(values) <= 2 and all(value is not None and not isinstance(value, dict) for value in values.values())


def _changes(field: Any) -> str:
    """When a field may change; of one that only a cluster knows or treats otherwise, when it may there."""
    if blocks_in(field.annotation):
        return ""
    here, there = Mutability(field.json_schema_extra["change"]), Mutability(field.json_schema_extra["cluster"])
    shown = f"**{there}**" if there is Mutability.LIVE else str(there)
    return shown if here is there else f"{shown} on a cluster"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
