"""A job file in the making, and the ledger of the foreign keys: each is in exactly one of three lists.

Owns the lists: carried (old → new), meaning differs (both values), dropped (why). A translation takes keys one by one;
what its table doesn't know is dropped as unknown, never left out. Pure.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from areal.errors import ConfigError
from areal.spec.block import block_for, fields_of
from areal.spec.job import JobSpec
from areal.spec.locality import in_store, is_hub_name
from areal.spec.resolved_algorithm import BASE, NAMES, camel
from areal.yaml_file.table import read_table

UNSET = "\x00"  # around the name of what a foreign file leaves to its environment
_SAME = object()
OTHERS = read_table("areal.convert", "others.yaml")
_DROPPED = read_table("areal.convert", "dropped.yaml")
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
    further: int = 0  # trainings that the file starts after this one
    notes: tuple[str, ...] = ()  # how it was read, where its author must look


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
                self._unset.setdefault(text.split(UNSET)[1], key)
        return default if value is None else value

    def number(self, key: str, default: float = 0) -> Any:
        """A key's number. Raises ConfigError for anything else."""
        if (value := self.get(key, default)) is False:
            value = 0  # a frequency that is off
        if isinstance(value, str) and UNSET in value:
            return default or 1
        if value is True or not isinstance(value, int | float):
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
        named = [keys] if isinstance(keys, str) else keys
        found = [key for key in named if key in self.foreign.values and key not in self._listed]
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

    def apply(self, carried: Mapping[str, Carried], source: str, decisive: tuple[str, ...]) -> None:
        """List every key that is left, by the most special pattern that fits it.

        `carried` is pattern → field, or field and how its value is made; what is dropped stands under `source` in
        dropped.yaml, reason → patterns. An unknown key of the `decisive` blocks may change what is learned, and needs a
        decision.
        """
        strange: set[str] = set()
        reasons = {pattern: why for why, patterns in _DROPPED[source].items() for pattern in patterns.split()}
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
                strange |= {key} if str(value) not in ("False", "{}", "[]") else set()
        unknown = [key for key in self.below(*decisive) if key in strange]
        if unknown:
            self.decide(f"spec: unknown to this command, see there whether they matter: {', '.join(unknown)}")

    def refuse_unset(self) -> None:
        """Raise ConfigError for values that the file leaves to its environment and the job needs."""
        if self._unset:
            said = ", ".join(f"{name} (for {key})" for name, key in self._unset.items())
            given = [name[1:] if re.fullmatch(r"\$\w+", name) else key for name, key in self._unset.items()]
            fix = f"Say it: areal convert {self.foreign.file} {'=… '.join(given)}=…"
            raise ConfigError(f"{self.foreign.file} doesn't say what these are: {said}", fix=fix)

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
    reduce(lambda inner, block: inner.setdefault(block, {}), blocks, values)[last] = value


# ---- Fields of a job that every framework has under names and in units of its own: model, rows, steps, optimizer, GPUs


_LONGEST_NAME, _UNKNOWN_STEPS = 40, 100  # the latter stands in a job file until its author has decided
_ROWS = {"gsm8k": 7473, "math-lighteval": 7500}  # of the training split
_MATHEMATICS = ("gsm8k", "math", "numinamath", "aime", "deepscaler")  # words of a set's name
_CONFIGURATIONS = {"openai/gsm8k": "main"}
_SCHEDULES = {
    "constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine",
    "cosine_with_min_lr": "cosine", "warmup_stable_decay": None,
}  # fmt: skip
_PROJECTIONS: dict[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_proj": ("o_proj",), "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
    **{name: (name,) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")},
}  # fmt: skip


class JobDraft(Draft):
    """A draft with the fields that all frameworks have."""

    def name_job(self, *keys: str, default: str) -> None:
        """A name that pods can have, of what there is."""
        parts = [str(value) for key in keys if (value := self.foreign.values.get(key)) and UNSET not in str(value)]
        made = re.sub(r"[^a-z0-9]+", "-", "-".join(parts or [default]).lower()).strip("-")
        made = made if made[:1].isalpha() else f"run-{made}"
        self.name = made[:_LONGEST_NAME].strip("-")
        self.note(keys, "metadata.name", self.name)

    def put_model(self, key: str, to: str = "model", *, tokenizer: str = "") -> None:
        """The start model: a name of the hub, or a directory."""
        if not (value := str(self.get(key, ""))):
            self.write(f"{to}.path", "models/start")
            self.decide(f"{to}.path: the file names no model")
        else:
            field, text = model_source(value)
            self.put(key, f"{to}.{field}", text)
        if tokenizer and self.has(tokenizer) and self.get(tokenizer) != value:
            self.put(tokenizer, f"{to}.tokenizer")
        elif tokenizer:
            self.note(tokenizer, to, "the model's own")

    def start_model_only(self, key: str, start: str, field: str) -> None:
        """A model that is the start model here: another one needs a decision."""
        if self.get(key, self.get(start)) != self.get(start):
            self.decide(f"{field}: {key} is {self.get(key)} there; here it is the start model")
        self.note(key, "model", "the start model")

    def put_rows(self, key: str, which: str, *, split: str = "", config: str = "", prompt: str = "") -> None:
        """Source of rows: a file, or a name of the hub. `split`, `config` are texts, `prompt` a column."""
        if not (value := self.get(key)):
            self.no_rows()
            return
        paths = [local(str(file)) for file in (value if isinstance(value, list) else [value])]
        counts = [rows_of(path) or 0 for path in paths]
        if which == "train" and all(counts):
            self.rows = self.rows or sum(counts)
        sources = [_source(path, which, split, config, prompt) for path in paths]
        if len(sources) == 1:
            (kind, found), *_ = sources[0].items()
            to = f"dataset.{which}.{kind}"
            self.put(key, to if kind == "jsonl" else f"{to}.path", paths[0])
            self.write(to, found)
        elif which == "train":
            weights = counts if all(counts) else [1] * len(counts)
            weighed = [{**source, "weight": float(weight)} for source, weight in zip(sources, weights, strict=True)]
            self.join("dataset.train.sources", weighed, key, why="one list there; here a file has a weight, its rows")
            if not all(counts):
                self.decide("dataset.train.sources: weights are 1 each; there a file's share is its rows")
        else:
            self.join(f"dataset.{which}", sources[0], key, why=f"one source here, {len(sources)} there")
            self.decide(f"dataset.{which}: {key} has {len(sources)} files, the first is here: join them")

    def no_rows(self) -> None:
        """A place for rows that the file doesn't name."""
        self.write("dataset.train", {"jsonl": "data/train.jsonl"})
        self.decide("dataset.train: rows are named nowhere; give a file, or a `dataset(split)` of the recipe")

    def put_steps(
        self, block: str, batch: int, *, epochs: str, usual: float, total: str = "", updates: int = 1
    ) -> int | None:
        """The run's steps: as many as are named, else epochs × ⌊rows / batch⌋. None where nobody knows the rows.

        A training on fixed rows keeps its epochs. `updates` are the optimizer's steps in one of ours, which `total`
        counts.
        """
        to = f"{block}.maxSteps"
        if batch < 1:
            raise ConfigError(f"{self.foreign.file}: its batches are of {batch}", fix="Give the batch size: KEY=VALUE.")
        if total and self.has(total) and self.number(total) > 0:
            steps: int = max(1, math.ceil(self.number(total) / updates))
            self.put(total, to, steps, why=f"updates there, steps of {updates} updates here" if updates > 1 else "")
            self.drop(epochs, f"{total} decides")
            return steps
        self.drop(total, "epochs decide")
        count = self.number(epochs, usual)
        steps = max(1, math.floor(count * (self.rows // batch))) if self.rows else 0
        if block == "training":
            whole_epochs = max(1, round(count))
            said = "" if whole_epochs == count else "whole ones here"
            self.put(epochs, "training.epochs", whole_epochs, default=usual, why=said)
            return steps or None
        said = f"epochs there; {count} × ⌊{self.rows or 'rows'} / {batch}⌋ steps here"
        self.put(epochs, to, steps or _UNKNOWN_STEPS, default=usual, why=said)
        if not steps:
            self.decide(f"{to}: {count} × ⌊rows / {batch}⌋; how many rows there are isn't known here (--rows N)")
        return steps or None

    def put_warmup(self, steps: int | None, *, count: str = "", share: str = "", usual: float = 0.0) -> None:
        """Warm-up in steps, from steps or from a share of them."""
        to = "optimizer.warmupSteps"
        if count and self.has(count) and self.number(count) >= 0:
            if 0 < self.number(count) < 1:
                share = count
            else:
                self.put(count, to, int(self.number(count)))
                self.drop(share, f"{count} decides")
                return
        self.drop(count if count != share else "", "negative: the share decides")
        part = self.number(share, usual) if share else usual
        made = max(1, round(part * (steps or _UNKNOWN_STEPS))) if part else 0
        self.put(share or count, to, made, default=usual, why="" if not part else "a share there, steps here")

    def put_schedule(self, key: str, usual: str) -> None:
        """The learning rate's schedule."""
        name = str(self.get(key, usual))
        if (ours := _SCHEDULES.get(name)) is None:
            self.drop(key, f"{name} has no equivalent", decide=f"optimizer.lrSchedule: {key} is {name} there")
        else:
            self.put(key, "optimizer.lrSchedule", ours, default=usual, why="" if name == ours else "its nearest here")
            if ours != "constant":
                self.write("optimizer.minLrRatio", self.spec.get("optimizer", {}).get("minLrRatio", 0.0))

    def put_lora(
        self, rank: str, alpha: str, targets: str, *, usual: tuple[int, float], wanted: bool, switch: str = ""
    ) -> None:
        """Adapters, where they are wanted; names of Megatron's layers are translated."""
        if wanted and self.get(rank) != 0:
            self.put(rank, "trainer.lora.rank", default=usual[0])
            self.put(alpha, "trainer.lora.alpha", default=usual[1])
            given = self.get(targets)
            names = given if isinstance(given, list) else str(given or "all-linear").replace(",", " ").split()
            known = [name for each in names for name in _PROJECTIONS.get(str(each), ())]
            if known:
                self.put(
                    targets, "trainer.lora.targets", known, why="" if len(known) >= len(names) else "the known ones"
                )
            elif names != ["all-linear"]:
                self.decide(f"trainer.lora.targets: {names} there, none of which is adapted here")
            self.note([targets, switch], "trainer.lora")
        self.drop([switch, rank, alpha, targets], "no adapters there")

    def put_gpus(self, world: int, per_node: int, tensor: int = 1, context: int = 1) -> None:
        """The trainer's processes: one a GPU, over as few nodes as they fit on."""
        if world > per_node:
            nodes = math.ceil(world / per_node)
            self.write("trainer.replicas", nodes)
            world = world // nodes
        self.write("trainer.gpus", world)
        if tensor * context > 1:
            self.write("trainer.mesh", {name: n for name, n in (("tensor", tensor), ("context", context)) if n > 1})

    def put_engine(self, replicas: int, tensor: int) -> None:
        """SGLang servers, `tensor` GPUs each."""
        self.write("generation.replicas", replicas)
        self.write("generation.engine.type", "sglang")
        if tensor > 1:
            self.write("generation.engine.tensorParallel", tensor)
            self.write("generation.engine.gpus", tensor)

    def share(self, per_node: int) -> bool:
        """The same GPUs for servers and trainer, by turns; False where one of the two needs several machines."""
        generation = self.spec["generation"]
        serve = generation["replicas"] * generation["engine"].get("tensorParallel", 1)
        if self.spec["trainer"].get("replicas", 1) > 1 or serve > per_node:
            return False
        self.write("placement", "shared")
        for block, name in (("algorithm", "maxStaleness"), ("rollout", "ahead")):
            if self.spec[block].get(name, 0) > 1:  # nothing is generated while the trainer works
                self.write(f"{block}.{name}", 1)
        return True

    def put_interval(self, to: str, key: str) -> None:
        """An interval in steps; never and 0 are no interval."""
        if self.number(key, -1) >= 1:
            self.put(key, to, int(self.number(key)))
        self.drop(key, "never there; a run here always saves checkpoints and its last model")

    def put_reward(self, answer: str, recipe: str, *, why: str, own: bool = False) -> None:
        """The built-in verifier for rows that are known to be mathematics; else, or with `own`, a recipe's stub."""
        self.write("recipe.file", "recipe.py")
        words = set(re.split(r"[^a-z0-9]+", str(self.spec.get("dataset", {}).get("train")).lower()))
        if not own and words & set(_MATHEMATICS):
            self.write("reward.verifier", "math")
            self.write("reward.answerField", answer)
            return
        self.write("reward.verifier", "custom")
        self.recipe = recipe
        self.decide(f"recipe.py: {why}")

    def use_once(self, key: str, updates: int) -> None:
        """How often a batch is used there: once here, in so many updates."""
        if (again := self.number(key, 1)) > 1:
            name = key.rpartition(".")[2]
            self.decide(f"algorithm.miniBatches: a batch is used {again} times there ({name}), once here")
        self.note(key, "algorithm.miniBatches", updates, "" if again == 1 else "a batch is used once here")

    def whole(self, a: int, b: int, what: str) -> int:
        """a / b, with a decision where it isn't whole."""
        if b < 1:
            raise ConfigError(f"{self.foreign.file}: {what} divides by {b}", fix="Correct the batch sizes there.")
        if a % b:
            self.decide(f"{what}: {a} / {b} isn't whole; {max(1, a // b)} is here")
        return max(1, a // b)

    def choose(
        self, key: str, to: str, table: Mapping[str, str], usual: str, *, why: str = "", what: str = ""
    ) -> str | None:
        """A named choice by a table, written where `to` is a field. Without an equivalent: a decision, and None."""
        if (name := str(self.get(key, usual))) not in table:
            self.decide(f"{to or what}: {key} is {name} there, which has no equivalent")
            if to:
                self.drop(key, f"{name} has no equivalent")
            return None
        if to:
            self.put(key, to, table[name], default=usual, why=why)
        return table[name]


def local(path: str) -> str:
    """A path without the marks that only a shell understands."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


def model_source(value: str) -> tuple[str, str]:
    """The field of `model`, uri or path, and the text in it."""
    uri = value if in_store(value) else f"hf://{value}" if is_hub_name(value) else None
    return ("path", local(value)) if uri is None else ("uri", uri)


def _source(path: str, which: str, split: str, config: str, prompt: str) -> dict[str, Any]:
    if path.endswith(".jsonl") and not prompt:
        return {"jsonl": path}
    wanted = split or ("test" if which == "evaluation" and is_hub_name(path) else "train")
    named = {"name": config or _CONFIGURATIONS.get(path), "split": wanted if wanted != "train" else None,
             "columns": {"prompt": prompt} if prompt else None}  # fmt: skip
    return {"huggingFace": {"path": path, **{name: value for name, value in named.items() if value}}}


def rows_of(path: str) -> int | None:
    """Row count of a training set: counted where it is here, known where it is famous."""
    file = Path(path)
    if file.is_file() and file.suffix == ".jsonl":
        with file.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    if file.is_file() and file.suffix == ".parquet":
        from pyarrow.parquet import ParquetFile

        return int(ParquetFile(file).metadata.num_rows)
    words = re.split(r"[/_.]", path.lower())
    return next((rows for name, rows in _ROWS.items() if name in words), None)


def on_or_off(on: str, off: str) -> Callable[[Any], str]:
    """A switch's value here."""
    return lambda given: on if given else off
