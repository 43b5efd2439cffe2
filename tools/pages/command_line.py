"""Generator of docs/cli.md: every command of the command line, from its parser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer
from areal.cli.main import app

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
    lines = [f"## {path}", "", " ".join((command.help or "").split()).replace("<", "&lt;"), "", "```", usage, "```", ""]
    rows = [(f"`{_word(one)}`", getattr(one, "help", None) or "") for one in arguments]
    rows += [(_names(one), _about(one)) for one in options]
    if rows:
        lines += ["| | |", "| --- | --- |", *(f"| {_cell(name)} | {_cell(about)} |" for name, about in rows), ""]
    if command.context_settings.get("ignore_unknown_options"):
        lines += [f"Its options: `{path} --help`.", ""]
    if command.epilog:
        title, *examples = command.epilog.split("\n\n")
        lines += [title.strip(), "", "```", *(" ".join(one.split()) for one in examples), "```", ""]
    return "\n".join(lines)


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
