"""A job file in the making, and the ledger of the foreign keys: each is in exactly one of three lists.

Owns the lists: carried (old → new), meaning differs (both values), dropped (why). A translation takes keys one by one;
what its table doesn't know is dropped as unknown, never left out. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from areal.errors import ConfigError
from areal.spec.block import block_for, fields_of
from areal.spec.job import JobSpec
from areal.spec.resolved_algorithm import BASE, NAMES, camel

UNSET = "\x00"  # around the name of what a foreign file leaves to its environment
_SAME = object()
Carried: TypeAlias = str | tuple[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Foreign:
    """A foreign configuration, read: `values` by dotted key, leaves only.

    `task` is what the file starts (main_ppo, train_sft, GRPOConfig); `rewards` are functions that it names.
    """

    file: Path
    framework: str
    values: Mapping[str, Any]
    task: str = ""
    rewards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A line of a list. `to` is below `spec`; `value` is what stands there now."""

    key: str
    was: Any = None
    to: str = ""
    value: Any = None
    why: str = ""


@dataclass
class Draft:
    """The job so far. `rows` is how many the training set has, where somebody knows."""

    foreign: Foreign
    rows: int | None = None
    name: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    carried: list[Entry] = field(default_factory=list)
    differs: list[Entry] = field(default_factory=list)
    dropped: list[Entry] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    recipe: str = ""
    _listed: set[str] = field(default_factory=set)
    _unset: dict[str, str] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        """True where the file gives it, and not as null."""
        return self.foreign.values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """A key's value, or what it is there by default. What the environment decides is refused in the end."""
        value = self.foreign.values.get(key)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and UNSET in text:
                self._unset[text.split(UNSET)[1]] = key
        return default if value is None else value

    def number(self, key: str, default: float = 0) -> Any:
        """A key's number. Raises ConfigError for anything else."""
        value = self.get(key, default)
        if isinstance(value, str) and UNSET in value:
            return default or 1
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.foreign.file}: {key} is {value!r}, not a number", fix=f"Correct {key} there.")
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) >= 1 else value

    def put(self, key: str, to: str, value: Any = _SAME, *, default: Any = None, why: str = "") -> None:
        """Write a field that stands for a key; `default` is the key's, for files that leave it out.

        With `why` its meaning differs. A default that is ours as well is not written.
        """
        given = self.has(key)
        was = self.get(key, default)
        now = was if value is _SAME else value
        if now is None or (not given and default is None):
            return
        if (field := self.field(to)) is None:
            self.drop(key, f"there is no {to} here")
            return
        if "float" in str(field.annotation) and isinstance(now, int) and not isinstance(now, bool):
            now = float(now)
        if not given and not why and self._usual(to) == now:
            return
        set_at(self.spec, to, now)
        if given:
            self._list(self.differs if why else self.carried, Entry(key, was, to, now, why))
        else:
            said = why or "its default there, written out"
            self.differs.append(Entry(f"{key} (not written)", was, to, now, said))

    def fill(self, fields: Mapping[str, tuple[str, Any]]) -> None:
        """Write fields that each have one key, by a table of key → (field, the key's default)."""
        for key, (to, default) in fields.items():
            self.put(key, to, default=default)

    def join(self, to: str, value: Any, *keys: str, why: str = "") -> None:
        """Write a field that several keys make together, and list those that are there."""
        self.write(to, value)
        if value is None or self.field(to) is not None:
            self.note(keys, to, value, why)
        else:
            self.drop(keys, f"there is no {to} here")

    def below(self, *prefixes: str) -> list[str]:
        """The keys below these, which end with a dot where blocks are meant."""
        return [key for key in self.foreign.values if key.startswith(prefixes)]

    def note(self, keys: str | Iterable[str], to: str, value: Any = None, why: str = "") -> None:
        """List keys that are part of a field which is written already."""
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.foreign.values:
                self._list(self.differs if why else self.carried, Entry(key, self.foreign.values[key], to, value, why))

    def drop(self, keys: str | Iterable[str], why: str, *, decide: str = "") -> None:
        """List keys that have no place here; with `decide`, what its author must think about."""
        found = [key for key in ([keys] if isinstance(keys, str) else keys) if key in self.foreign.values]
        for key in found:
            self._list(self.dropped, Entry(key, self.foreign.values[key], why=why))
        if found and decide:
            self.decide(decide)

    def decide(self, what: str) -> None:
        """Something that only the job's author can say."""
        if what not in self.decisions:
            self.decisions.append(what)

    def write(self, to: str, value: Any) -> None:
        """Write a field for which no key stands, where there is such a field."""
        if value is not None and self.field(to) is not None:
            set_at(self.spec, to, value)

    def apply(self, carried: Mapping[str, Carried], dropped: Mapping[str, str], decisive: tuple[str, ...]) -> None:
        """List every key that is left, by the most special pattern that fits it.

        `carried` is pattern → field, or field and how its value is made; `dropped` is reason → patterns. An unknown key
        of the `decisive` blocks may change what is learned, and needs a decision.
        """
        strange: set[str] = set()
        reasons = {pattern: why for why, patterns in dropped.items() for pattern in patterns.split()}
        patterns = sorted([*carried, *reasons], key=lambda pattern: (pattern.count("."), len(pattern)), reverse=True)
        for key, value in self.foreign.values.items():
            if key in self._listed:
                continue
            found = next((each for each in patterns if fnmatchcase(key, each) or fnmatchcase(key, f"{each}.*")), None)
            if value is None:
                self.drop(key, "null: nothing is asked for")
            elif found is not None and found in carried:
                to = carried[found]
                field, make = (to, None) if isinstance(to, str) else to
                self.put(key, field, make(self.get(key)) if make else _SAME)
            elif found is not None:
                self.drop(key, reasons[found])
            else:
                self.drop(key, "unknown to this command")
                strange.add(key)
        unknown = [key for key in self.below(*decisive) if key in strange and self.foreign.values[key] is not False]
        if unknown:
            self.decide(f"spec: unknown to this command, see there whether they matter: {', '.join(unknown)}")

    def refuse_unset(self) -> None:
        """Raise ConfigError for values that the file leaves to its environment and the job needs."""
        if self._unset:
            said = ", ".join(f"{name} (for {key})" for name, key in self._unset.items())
            first = next(iter(self._unset)).lstrip("$")
            how = f"{first}=…" if first.isidentifier() or first.isdigit() else f"{next(iter(self._unset.values()))}=…"
            raise ConfigError(
                f"{self.foreign.file} doesn't say what these are: {said}",
                fix=f"Say it: areal convert {self.foreign.file} {how}",
            )

    def _list(self, entries: list[Entry], entry: Entry) -> None:
        if entry.key not in self._listed:
            self._listed.add(entry.key)
            entries.append(entry)

    def _usual(self, to: str) -> Any:
        """A field's default here; of one that the algorithm's name decides, what the name says."""
        keys = to.split(".")
        if keys[0] == "optimizer" and self.spec.get("training"):
            return None
        preset = {**BASE, **NAMES.get(str(self.spec.get("algorithm", {}).get("name")), {})}
        named = {camel(name): value for name, value in preset.items()}
        if keys[0] == "algorithm" and keys[-1] in named:
            return named[keys[-1]]
        return found.get_default(call_default_factory=True) if (found := self.field(to)) is not None else None

    def field(self, to: str) -> Any:
        """Declaration of a field below `spec`; None where there is no such field."""
        block: type[BaseModel] | None = JobSpec
        found: Any = None
        given: Any = self.spec
        for key in to.split("."):
            given = given.get(key) if isinstance(given, dict) else None
            found = fields_of(block).get(key) if block is not None else None
            block = block_for(found.annotation, given) if found is not None else None
        return found


def set_at(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in nested mappings."""
    *blocks, last = path.split(".")
    for block in blocks:
        values = values.setdefault(block, {})
    values[last] = value
