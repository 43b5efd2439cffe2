"""Generator of docs/cli.md: every command of the command line, from its parser."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer
from areal.cli.main import app

from tools.doc_blocks import apart, commands_of

_HEAD = """# Command line

Made from the parser: `make docs`. Every command prints the same with `--help`. Exit
codes: 0 done, 64 the job file or an argument, 65 the data, 70 a fault of ours, 75 the machine (try again), 143 stopped.

"""
_SHOWN = ("--help", "-h")


def render() -> str:
    """The page."""
    return _HEAD + "\n".join(
        _section(path, command) for path, command in _commands(typer.main.get_command(app), "areal")
    )


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All commands, those of a group one after the other."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    if command.invoke_without_command and " " in path:  # it is a command by itself, too
        yield path, command
    for name, one in inner.items():
        yield from _commands(one, f"{path} {name}")


def _section(path: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not set(one.opts) & set(_SHOWN)]
    usage = " ".join([path, *(_word(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    lines = [
        f"## {path}",
        "",
        " ".join((command.help or "").split()).replace("<", "&lt;"),
        "",
        "```text",
        usage,
        "```",
        "",
    ]
    rows = [(f"`{_word(one)}`", getattr(one, "help", None) or "") for one in arguments]
    rows += [(_names(one), _about(one)) for one in options]
    if rows:
        lines += ["| | |", "| --- | --- |", *(f"| {_cell(name)} | {_cell(about)} |" for name, about in rows), ""]
    if command.context_settings.get("ignore_unknown_options"):
        lines += [
            "| | |",
            "| --- | --- |",
            *(f"| {_cell(name)} | {_cell(about)} |" for name, about in passed_on(path)),
            "",
        ]
    if command.epilog:
        title, *examples = command.epilog.split("\n\n")
        shown = [" ".join(one.split()) for one in examples]
        lines += [title.strip(), "", *_mark(shown), "```bash", *shown, "```", ""]
    return "\n".join(lines)


_PASSED_ON = {"areal init-model": "areal_trainer.init_model", "areal serve": "areal.engine.serve"}


def passed_on(path: str) -> list[tuple[str, str]]:
    """Options of a command that another parser reads, with their help; from its source, for that imports torch."""
    spec = find_spec(_PASSED_ON[path])
    assert spec is not None
    assert spec.origin is not None
    calls = (node for node in ast.walk(ast.parse(Path(spec.origin).read_text())) if isinstance(node, ast.Call))
    found = []
    for call in (call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
        names = [ast.literal_eval(one) for one in call.args]
        words = {one.arg: one.value for one in call.keywords}
        given = words["default"] if "default" in words and isinstance(words["default"], ast.Constant) else None
        about = str(ast.literal_eval(words["help"])) if "help" in words else ""
        default = str(ast.literal_eval(given)) if given is not None else "the loopback"
        choices = words.get("choices")
        value = "|".join(ast.literal_eval(choices)) if isinstance(choices, ast.Tuple) else "VALUE"
        takes = f" {value}" if names[0].startswith("-") and "action" not in words else ""
        found.append((f"`{', '.join(names)}{takes}`", about.replace("%(default)s", default)))
    return found


def _mark(examples: list[str]) -> list[str]:
    """Why none of a command's examples is run, for the tests of the pages; nothing where one is."""
    reasons = [apart(words) for words in commands_of("\n".join(examples))]
    return [f"<!-- not run: {reasons[0]} -->"] if all(reasons) else []


def _word(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _names(option: Any) -> str:
    kind = "" if option.is_flag else f" {option.metavar or _kind(option.type_descriptor.annotation)}"
    return f"`{', '.join(option.opts)}{kind}`"


_KINDS = {Path: "PATH", int: "INTEGER", float: "NUMBER"}


def _kind(annotation: Any) -> str:
    """What a value is, of `X`, `X | None`, `list[X]` and `Literal`."""
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    inner = [one for one in get_args(annotation) if one is not NoneType]
    return _kind(inner[0]) if inner else _KINDS.get(annotation, "TEXT")


def _about(option: Any) -> str:
    default = option.default
    shown = default not in (None, "", False) and not callable(default) and not isinstance(default, list | tuple)
    return f"{option.help or ''}{f' Default: `{default}`.' if shown else ''}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|") if text.startswith("`") else text.replace("|", "\\|").replace("<", "&lt;")
