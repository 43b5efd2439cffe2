"""Command table: of every command the module that has it, by name, and its line in the help.

Nothing is imported before it is asked for: help is instant, and the core has no arrow to the packages beside it. A
module has its commands in a typer application named `app`, and the end of each one's help in `examples.json`.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

_TABLE = resources.files("areal.cli").joinpath("commands.json").read_bytes()  # JSON, for the help is instant
COMMANDS: Mapping[str, tuple[str, str]] = {name: (module, line) for name, (module, line) in json.loads(_TABLE).items()}
HIDDEN = frozenset({"init-model", "operator", "jobs-page"})  # what the chart, the Makefile and tests start


def load(entry: str) -> Any:
    """Object that `module:name` names; imports the module."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


class LoadedCommands(Mapping[str, Any]):
    """The parser's commands by their names, those of the table made when they are asked for, and `others`."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._made = dict(others)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            import typer

            module, _ = COMMANDS[name]
            made = self._made[name] = typer.main.get_group(load(f"{module}:app")).commands[name]
            examples = json.loads(resources.files("areal.cli").joinpath("examples.json").read_bytes())
            made.epilog = "\n\n  ".join(examples[name]) if name in examples else None
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*COMMANDS, *self._made)))

    def __len__(self) -> int:
        return len(COMMANDS.keys() | self._made.keys())
