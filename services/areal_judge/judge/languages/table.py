"""The languages that can be judged: how each is compiled and run, and what its runtime needs for itself. Pure data.

The table is `languages.yaml`, beside this.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from areal.yaml_file.table import read_table, tuple_fields

from areal_judge.sandbox.values import Limits, Tier

PATH = "/usr/bin:/bin"
_NONE: Mapping[str, str] = MappingProxyType({})
_C_LOCALE = MappingProxyType({"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/tmp"})


@dataclass(frozen=True)
class Language:
    """One language. Its limits are a suite's, times the factors, plus what its runtime takes before the first line."""

    name: str
    tier: Tier  # the least that runs it
    source: str  # what the submission's file is called
    fences: tuple[str, ...]  # what fences of completions are tagged with
    suffixes: tuple[str, ...]  # of files with programs
    tools: Mapping[str, tuple[str, ...]]  # a word of argv → names to look for
    install: str  # Debian packages that bring it
    module: tuple[str, str] = ("", "")  # another name for the file, where the text has this pattern
    run: tuple[str, ...] = ()  # empty: a Script of the sandbox's own interpreter
    compile: tuple[str, ...] = ()  # empty: nothing to compile
    artefact: str = ""  # what `compile` makes
    executable: bool = False  # whether the artefact is the program itself
    prepare: tuple[str, ...] = ()  # made once a toolchain, from files of ours
    prepare_files: Mapping[str, str] = field(default_factory=lambda: _NONE)  # name in the cell → file beside this one
    prepared: tuple[str, ...] = ()  # what `prepare` makes
    store: bool = False  # prepared files lie in the store; else they are laid into every compilation
    needs_prepared: bool = False  # without them there's no compiling; else they only make it faster
    compile_environment: Mapping[str, str] = field(default_factory=lambda: _C_LOCALE)
    environment: Mapping[str, str] = field(default_factory=lambda: _C_LOCALE)
    time_factor: float = 1.0
    memory_factor: float = 1.0
    start_s: float = 0.0  # wall and CPU seconds
    start_bytes: int = 0
    processes: int = 1  # at least; threads count
    open_files: int = 64  # at least
    as_memory: bool = True  # whether it can start under RLIMIT_AS
    compile_as_memory: bool = True

    @property
    def compiled(self) -> bool:
        return bool(self.compile)


_TABLE = read_table("areal_judge.judge.languages", "languages.yaml")
COMPILE_LIMITS, PREPARE_LIMITS = (Limits(**_TABLE["limits"][step]) for step in ("compile", "prepare"))
COREUTILS: tuple[str, ...] = tuple(_TABLE["coreutils"])
"""What a bash program finds on its PATH, of what the machine has."""


def _language(name: str, row: Mapping[str, Any]) -> Language:
    fields = tuple_fields(row)
    fields["tier"] = Tier[row["tier"]]
    fields["tools"] = {word: tuple(programs) for word, programs in row["tools"].items()}
    for kind in row.keys() & {"environment", "compile_environment"}:
        fields[kind] = {**_C_LOCALE, **row[kind]}
    if megabytes := fields.pop("start_mb", 0):
        fields["start_bytes"] = megabytes << 20
    if archives := fields.pop("prepared_archives", 0):
        fields["prepared"] += tuple(f"{number}.a" for number in range(1, archives + 1))
    return Language(name=name, **fields)


LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {name: _language(name, row) for name, row in _TABLE["languages"].items()}
)
ALIASES = {alias: name for name, aliases in _TABLE["other_names"].items() for alias in aliases}


def language_of(name: str) -> Language | None:
    """The language that people call `name`."""
    lower = name.strip().lower()
    return LANGUAGES.get(ALIASES.get(lower, lower))
