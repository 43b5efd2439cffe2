"""Generator of docs/python.md: what Python code calls and defines, from signatures and docstrings of the sources.

Sources are parsed, not imported: the trainer's need torch. Names of `areal` and `areal.workflow` are those that the
packages export, so that a new one has its section by itself.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import areal
import areal.workflow

_HEAD = """# Python

What notebooks and scripts call (`areal`), what a recipe imports and defines, what hooks and training loops are given.
Made from the docstrings: `make docs`. Shapes are in brackets, `[tokens]`; S counts sequences, T tokens. How to use it
all, in whole examples: [a run](operating.md#from-python), [recipes and workflows](workflows.md), [rewards](reward.md),
[figures](figures.md), [training](rl-training.md).
"""
_RUNS = """A run is started, watched and read from Python; it is a process of its own.

```python
import areal

run = areal.run("job.yaml", "algorithm.maxSteps=2")
summary = run.wait()
print(summary["status"], run.metrics().column("reward_mean"))
```
"""
_WORKFLOWS = (
    """`from areal.workflow import …`, in a recipe. [An example](workflows.md#your-own) of each kind of workflow."""
)
_RECIPE = """Functions that a recipe, or the file of `trainer.hooks`, may define, and what they are given.

```python
def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    return {"correct": float(completions.strip() == answer), "short": 1 / (1 + len(completion_ids))}


def dataset(split):
    return [{"prompt": "21=", "answer": "12"}]


def compute_advantages(batch):
    batch.figures["best"] = batch.rewards.max()
    return batch.rewards - batch.rewards.mean()
```

`reward` returns a number, or [parts by name](figures.md#parts-of-a-reward); `dataset` yields rows of `train` and of
`evaluation`; `compute_advantages(batch: AdvantageBatch)` returns `[S]` or `[T]` numbers, and
`compute_loss(batch: LossBatch, outputs: LossOutputs)` a tensor, `[tokens]`. What each may raise, and what that costs:
[rewards](reward.md#your-own), [workflows](workflows.md#when-it-goes-wrong).
"""
_LOOP = (
    """`train(ctx)` of a recipe replaces the trainer's loop: [an example](rl-training.md). `ctx` is a `TrainContext`."""
)
_ERRORS = """Whatever fails raises one of these; `message` says what and where, `fix` what to do. Exit codes are those
of the [command line](cli.md)."""


def render() -> str:
    """The page."""
    sections = [
        ("Runs", _RUNS, _exported(areal)),
        ("Workflows", _WORKFLOWS, _exported(areal.workflow)),
        ("Recipes and hooks", _RECIPE, [
            ("areal_trainer.data.batch", "AdvantageBatch", "AdvantageBatch"),
            ("areal_trainer.objective", "LossBatch", "LossBatch"),
            ("areal_trainer.objective", "LossOutputs", "LossOutputs"),
            ("areal.workflow.upstream", "upstream_reward", "areal.workflow.upstream.upstream_reward"),
            ("areal.workflow.upstream", "UpstreamWorkflow", "areal.workflow.upstream.UpstreamWorkflow"),
        ]),
        ("A training loop", _LOOP, [
            ("areal_trainer.ledger_batches", "TrainContext", "TrainContext"),
            ("areal_trainer.rollout", "Rollout", "ctx.rollout"),
            ("areal_trainer.actor", "Actor", "ctx.actor"),
        ]),
        ("Errors", _ERRORS, [
            ("areal.errors", name, f"areal.errors.{name}")
            for name in ("ArealError", "ConfigError", "DataError", "InfraError", "BugError")
        ]),
    ]  # fmt: skip
    return _HEAD + "".join(
        f"\n## {title}\n\n{words.strip()}\n" + "".join(_section(*name) for name in names)
        for title, words, names in sections
    )


def _exported(package: object) -> list[tuple[str, str, str]]:
    """(module, name there, title) of each public name of a package."""
    lazy = getattr(package, "_LAZY", None)
    prefix = package.__name__  # type: ignore[attr-defined]
    if lazy is not None:
        return [(module, there, f"{prefix}.{name}") for name, (module, there) in lazy.items()]
    names: list[str] = package.__all__  # type: ignore[attr-defined]
    return [(getattr(package, name).__module__, name, f"{prefix}.{name}") for name in names]


@cache
def _lines(module: str) -> list[str]:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8").splitlines()


def _named(module: str, name: str) -> tuple[str, ast.stmt]:
    """The module that defines a name, and its definition there; what is imported from another module is looked up."""
    body = ast.parse("\n".join(_lines(module))).body
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
    for node in body:
        ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("areal")
        if ours and any(one.name == name for one in node.names):  # type: ignore[union-attr]
            return _named(node.module, name)  # type: ignore[union-attr]
    raise LookupError(f"{module} has no {name}")


def _section(module: str, name: str, title: str) -> str:
    module, node = _named(module, name)
    if isinstance(node, ast.FunctionDef):
        return f"\n### {title}\n\n" + _function(node, title)
    assert isinstance(node, ast.ClassDef)
    made = _initializer(node, title)
    parts = [f"### {title}", *([made] if made else []), _words(ast.get_docstring(node)), *_fields(module, node)]
    rows = [_row(method) for method in _methods(module, node)]
    if rows:
        parts += ["\n".join(["| | |", "| --- | --- |", *rows])]
    return "\n" + "\n\n".join(parts) + "\n"


def _function(node: ast.FunctionDef, title: str) -> str:
    return f"```text\n{_signature(node, title)}\n```\n\n{_words(ast.get_docstring(node))}\n"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, title: str, *, bound: bool = False) -> str:
    arguments = ast.unparse(node.args)
    if bound:
        arguments = re.sub(r"^(self|cls)(: \w+)?(, )?", "", arguments)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{title}({arguments}){returned}"
    return line if len(line) <= 120 else _broken(line)


def _broken(line: str) -> str:
    """An argument a line, where all don't fit into one."""
    head, _, rest = line.partition("(")
    inner, _, end = rest.rpartition(")")
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(inner):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(inner[begin:place].strip())
            begin = place + 1
    return head + "(\n" + "".join(f"    {part},\n" for part in [*parts, inner[begin:].strip()]) + f"){end}"


def _initializer(node: ast.ClassDef, title: str) -> str:
    """The call that makes one, where people make them: a class whose docstring doesn't say who does."""
    found = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    if not found or "made by" in (ast.get_docstring(node) or "").lower() or title.startswith("ctx."):
        return ""
    bare = re.sub(r" -> None$", "", _signature(found[0], title, bound=True))
    if re.search(r": _[A-Z]", bare):  # a type of ours alone
        return ""
    return f"```text\n{bare}\n```"


def _fields(module: str, node: ast.ClassDef) -> Iterator[str]:
    """A table of a data class's fields, with the comment behind each."""
    rows = []
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            behind = _lines(module)[one.end_lineno - 1][one.end_col_offset :]  # type: ignore[operator]
            about = behind.partition("#")[2].strip()
            default = (
                f" = {ast.unparse(one.value)}"
                if one.value is not None and "field(" not in ast.unparse(one.value)
                else ""
            )
            rows.append(_cells(f"`{one.target.id}: {ast.unparse(one.annotation)}{default}`", about))
    if rows:
        yield "\n".join(["| field | |", "| --- | --- |", *rows])


def _methods(module: str, node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public methods and properties, also of bases that are of this project and have a body to read."""
    seen = set()
    for owner in [node, *_bases(module, node)]:
        for one in owner.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and not one.name.startswith("_"):
                if one.name not in seen and ast.get_docstring(one):
                    yield one
                seen.add(one.name)


def _bases(module: str, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    for base in node.bases:
        if isinstance(base, ast.Name):
            try:
                where, found = _named(module, base.id)
            except (LookupError, AssertionError):
                continue
            if isinstance(found, ast.ClassDef) and where.startswith("areal"):
                yield found
                yield from _bases(where, found)


def _row(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    properties = [one for one in node.decorator_list if ast.unparse(one).endswith("property")]
    begin = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    if properties:
        returned = f": {ast.unparse(node.returns)}" if node.returns is not None else ""
        return _cells(f"`{node.name}{returned}`", _flat(ast.get_docstring(node)))
    call = " ".join(_signature(node, node.name, bound=True).split()).replace("( ", "(").replace(", )", ")")
    return _cells(f"`{begin}{call}`", _flat(ast.get_docstring(node)))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_TITLES = {"Args": "", "Raises": "Raises ", "Returns": "Returns: "}


def _flat(docstring: str | None) -> str:
    """A docstring in one line, for a cell."""
    return _plain(" ".join(part for part in _parts(docstring) if not part.startswith("```")))


def _words(docstring: str | None) -> str:
    return _plain("\n\n".join(_parts(docstring, "\n- ")))


def _plain(text: str) -> str:
    """The text with angle brackets outside of code as Markdown takes them."""
    return "".join(
        part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(re.split(r"(`[^`]*`)", text))
    )


def _parts(docstring: str | None, between: str = "; ") -> Sequence[str]:
    """Paragraphs; a section of arguments or errors becomes one, with `between` its entries."""
    found = []
    for part in textwrap.dedent(docstring or "").strip().split("\n\n"):
        if part.lstrip().startswith(">>> "):
            found.append(f"```text\n{part}\n```")
            continue
        title, _, rest = part.partition(":\n")
        if title not in _TITLES:
            found.append(" ".join(part.split()))
            continue
        entries = re.split(r"\n(?=\S)", textwrap.dedent(rest))
        named = [" ".join(entry.split()).partition(": ") for entry in entries]
        found.append(
            ("- " if "\n" in between else "")
            + between.join(f"{_TITLES[title]}`{name}`: {about.rstrip('.')}" for name, _, about in named)
            + "."
        )
    return found
