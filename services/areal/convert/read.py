"""Reading of a foreign configuration: which framework's it is, and its keys and values.

YAML, launch scripts (`python -m verl.trainer.main_ppo key=value …`, `--flag value`) and Python scripts with a
configuration class; nothing is run.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal.convert.draft import OTHERS, UNSET, Foreign
from areal.convert.script import LORA, code_of, read_calls
from areal.convert.shell import read_commands
from areal.errors import ConfigError
from areal.spec.locate import leaves
from areal.yaml_file.document import parse_document, parse_value

FRAMEWORKS = ("areal", "verl", "trl", "openrlhf")
_TASKS = {
    "verl": re.compile(
        r"verl\.trainer\.(main_ppo\w*|fsdp_sft_trainer|sft_trainer)|(main_ppo\w*|fsdp_sft_trainer|sft_trainer)\.py"
    ),
    "openrlhf": re.compile(r"openrlhf\.cli\.(train_\w+)"),
    "trl": re.compile(r"(?:^|.*/)((?:sft|grpo|dpo|rloo|reward|kto|gspo)\w*)\.py|trl"),
    "areal": re.compile(r"(.*\.py)"),
}
_LAUNCHES = re.compile(rf"python|accelerate|torchrun|deepspeed|\buvx?\b|\bray\b|{UNSET}")
_COMMAND_LINE = re.compile(
    r"^[ \t]*(?:[A-Z_]+=\S+ )*(?:accelerate|python3?|torchrun|trl|uv run|uvx)\b.*(?:\\\n.*)*", re.MULTILINE
)
_SIGNS = {  # keys that only one framework has
    "verl": ("actor_rollout_ref", "data.train_files"),
    "areal": ("train_dataset.path", "train_dataset.batch_size", "gconfig"),
    "trl": ("model_name_or_path", "per_device_train_batch_size"),
}


_TRL = {"per_device_train_batch_size", "gradient_accumulation_steps"}  # names that a block of its arguments has
_FLAGS = {"areal": {"config"}, "trl": {"config", "model_name_or_path", "dataset_name", "learning_rate", *_TRL}}
"""Of which a command has one, where any program may have the name of its program."""


def read_foreign(file: Path, framework: str | None, given: Sequence[str]) -> Foreign:
    """A file's keys. `given` are `KEY=VALUE` that come on top: keys of the file, or variables of a script.

    Raises ConfigError for a file that is none of these, or that names what is not here.
    """
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} can't be read: {error}", fix="Name a configuration or a launch script.") from None
    pairs = [tuple(each.split("=", 1)) for each in given if "=" in each]
    if len(pairs) < len(given):
        raise ConfigError(f"{given} are no KEY=VALUE", fix="Write NNODES=1 or data.train_batch_size=512.")
    over = {name: _value(value) for name, value in pairs}
    whose = next((name for name, sign in OTHERS.items() if re.search(sign, text, re.MULTILINE)), None)
    if whose is not None and framework is None and file.suffix not in (".py", ".ipynb"):
        raise ConfigError(
            f"{file} is a file of {whose}, which this command doesn't read",
            fix="Write its values into a job by hand: docs/migration.md has the fields of others.",
        )
    if file.suffix in (".yaml", ".yml", ".json"):
        return _of_values(file, _tree(text, file), framework, over)
    if file.suffix == ".ipynb":
        text = code_of(text, file)
    if file.suffix in (".py", ".ipynb"):
        return _of_python(file, text, framework, over)
    script = str(file.absolute())
    variables = {"0": script, "BASH_SOURCE": script} | {name: value for name, value in pairs if "." not in name}
    commands = read_commands(text, variables)
    for at, command in enumerate(commands[True], 1):
        if (found := _of_command(file, command, framework, over)) is not None:
            more = [each for each in commands[True][at:] if _started(each, found.framework) is not None]
            return replace(found, further=len(more))
    # else one under a condition that isn't known, if there is none
    branches = [found for each in commands[None] if (found := _of_command(file, each, framework, over)) is not None]
    fix = "Say the variables of its conditions, NODE_RANK=0 for example, or leave one training in it."
    if any(each != branches[0] for each in branches):
        raise ConfigError(f"{file} starts several trainings, each under a condition that isn't known", fix=fix)
    if not branches and any(_started(each, name) for name in _TASKS for each in commands[False]):
        raise ConfigError(f"{file} starts its training under a condition that doesn't hold by the file alone", fix=fix)
    training = branches[0] if branches else _of_program(file, [*commands[True], *commands[None]], framework)
    if training is None:
        raise _unknown(file)
    return training


def _of_program(file: Path, commands: list[list[str]], framework: str | None) -> Foreign | None:
    """The training of a program with TRL in it that a script starts and that is here, with its own options."""
    for words in commands:
        for k, word in enumerate(words):
            name = f"{word.replace('.', '/')}.py" if "-m" in words[max(0, k - 1) : k] else word
            above = (Path(), *file.absolute().parents) if re.fullmatch(r"\S{1,200}\.py", name) else ()
            path = next((folder / name for folder in above if (folder / name).is_file()), None)
            text = path.read_text("utf-8-sig", "replace") if path is not None else ""
            if path is not None and re.search(r"^\s*(from|import) trl\b", text, re.MULTILINE):
                said = {option.replace("-", "_"): value for option, value in _flags(words[k + 1 :])}
                over = said if re.search("TrlParser|HfArgumentParser", text) else {}
                return replace(_of_python(path, text, framework, {**_processes(words[:k]), **over}, **said), file=file)
    return None


def _tree(text: str, file: Path) -> dict[str, Any]:
    """Values of a YAML file, with `n` and `y` as the names that they are to its own reader; a cluster's has truths."""
    tree: dict[str, Any] = _spelled(parse_document(text, file).values)
    return tree


def _spelled(value: Any) -> Any:
    if isinstance(value, list):
        return [_spelled(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {{"false": "n", "true": "y"}.get(name, name): _spelled(inner) for name, inner in value.items()}


def _of_values(file: Path, values: dict[str, Any], framework: str | None, over: Mapping[str, Any]) -> Foreign:
    """A tree of keys. What is given comes before interpolations are resolved, as in a command line."""
    for name, value in over.items():
        _set(values, name.split("."), value)
    keys = dict(leaves(values))
    if framework in (None, "trl") and (blocks := [key for key in values if _TRL & _names_of(values[key])]):
        return _of_blocks(file, values, blocks)
    framework = framework or next(
        (
            name
            for name, signs in _SIGNS.items()
            if any(key == sign or key.startswith(f"{sign}.") for key in keys for sign in signs)
        ),
        None,
    )
    if framework is None:
        raise _unknown(file)
    if framework == "verl":
        values = _composed(values, file)
    return Foreign(file, framework, dict(leaves(resolved(values, file))) if framework in ("areal", "verl") else keys)


def _names_of(block: Any) -> set[str]:
    return set(block) if isinstance(block, dict) else set()


def _of_blocks(file: Path, values: dict[str, Any], blocks: list[str]) -> Foreign:
    """The file of a script of somebody's own that hands whole blocks to TRL's classes, and one to LoRA's."""
    flat = {name: value for key in blocks for name, value in values[key].items()}
    rest = {key: value for key, value in values.items() if key not in blocks}
    for key in [key for key in rest if {"r", "lora_alpha"} <= _names_of(rest[key])]:
        flat |= {LORA.get(name, f"lora.{name}"): value for name, value in rest.pop(key).items()} | {"use_peft": True}
    note = f"spec: keys of {', '.join(blocks)} are read as TRL's; a script decides what it does with the file"
    task = next((key for key in blocks if key in ("grpo", "sft", "dpo", "rloo", "reward")), "")
    return Foreign(file, "trl", dict(leaves({**rest, **flat})), task, notes=(note,))


def _of_command(file: Path, command: list[str], framework: str | None, over: dict[str, Any]) -> Foreign | None:
    """The training of a framework that is known that a command starts; None where it starts none."""
    for name in [framework] if framework else _TASKS:
        if (found := _started(command, name)) is None:
            continue
        at, named = found
        words = command[at + 1 :]
        started = next((group for group in (*named, *words) if group), "")
        launched = _processes(command[:at])
        if name == "verl" and "sft" in started and isinstance(count := launched.get("num_processes"), int):
            launched = {"trainer.n_gpus_per_node": count}  # its launcher says it, not its keys
        return _of_words(file, name, started, words, {**launched, **over})
    return None


def _started(command: list[str], framework: str) -> tuple[int, Sequence[str]] | None:
    """The place at which a command names a training of a framework, and its names; None where it starts none."""
    launched = next((k for k, word in enumerate(command) if _LAUNCHES.search(word)), len(command))
    flags = {word.lstrip("-").partition("=")[0] for word in command}
    if command[:1] == ["echo"] or (framework in _FLAGS and not _FLAGS[framework] & flags):
        return None
    for k, word in enumerate(command):
        if (found := _TASKS[framework].fullmatch(word)) is not None and (launched < k or word == "trl"):
            return k, found.groups()
    at = next((k for k in range(1, len(command)) if command[k - 1] == "-m" or command[k][-3:] == ".py"), 0)
    if at and framework == "verl" and any(word.startswith("actor_rollout_ref.actor.") for word in command):
        return at, command[at:]
    return None


def _processes(launcher: list[str]) -> dict[str, Any]:
    """Process count of a launcher, where it says one; Python alone is one."""
    for k, word in enumerate(launcher):
        name, equals, value = word.partition("=")
        if name in ("--num_processes", "--nproc_per_node", "--nproc-per-node"):
            return {"num_processes": _value(value if equals else (launcher[k + 1 :] or ["1"])[0])}
    return {} if {"accelerate", "torchrun", "deepspeed"} & set(launcher) else {"num_processes": 1}


def _of_words(file: Path, framework: str, task: str, words: list[str], over: dict[str, Any]) -> Foreign:
    """The keys that a command gives, and those of the file that it names; `over` comes on top of its own keys.

    A name without a dot may be a variable of the script: it is a key only where the command has it.
    """
    of_flags = [word for word in words if framework != "verl" or "=" not in word or word.startswith("--")]
    flags, keys = dict(_flags(of_flags)), dict(_pairs(words))
    own = {name for name in over if "." in name or name in (flags if framework in ("trl", "openrlhf") else keys)}
    own |= {"num_processes"} & over.keys() if framework == "trl" else set()
    over = {name: value for name, value in over.items() if name in own}
    keys |= over
    config = _config(file, framework, flags)
    named = ("config", "config-name", "config-path") if config is not None else ()
    values: dict[str, Any] = {"areal": {}, "verl": keys}.get(framework, {**flags, **over})
    if framework == "verl":
        values |= {name: value for name, value in flags.items() if name.startswith("config")}
    values = {name: value for name, value in values.items() if name not in named}
    if config is None:
        return Foreign(file, framework, values, task)
    tree = _tree(config.read_text(), config)
    if framework == "areal" and not {"train_dataset", "gconfig"} & tree.keys():  # any program may have a --config
        raise _unknown(config)
    if framework == "verl":
        tree = _composed(tree, config)
    for name, value in keys.items() if framework in ("areal", "verl") else ():
        _set(tree, name.split("."), value)
    return Foreign(file, framework, {**dict(leaves(resolved(tree, config))), **values}, task)


def _config(file: Path, framework: str, flags: Mapping[str, Any]) -> Path | None:
    """The file that a command names, where it is here. One of verl's own is not."""
    if framework == "verl":
        named = (
            Path(str(flags.get("config-path", "."))) / f"{str(flags.get('config-name', '')).removesuffix('.yaml')}.yaml"
        )
    elif "config" in flags:
        given = flags["config"]  # overrides of its keys may follow it
        named = Path(str(given[0] if isinstance(given, list) else given))
    else:
        return None
    found = next((path for path in (named, file.parent / named, file.parent / named.name) if path.is_file()), None)
    if found is None and framework != "verl":
        unknown = re.search(rf"{UNSET}\$(\w+){UNSET}", str(named))
        fix = f"Say it: areal convert {file} {unknown[1]}=…" if unknown else "Convert that file, or put it there."
        raise ConfigError(f"{file} names {str(named).replace(UNSET, '')}, which is not here", fix=fix)
    return found


def _set(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = tree.get(key)
        tree[key] = tree = inner if isinstance(inner, dict) else {}
    tree[keys[-1]] = value


def _pairs(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Hydra's overrides: `key=value`, `+key=value`, `++key=value`, and `~key`, which takes one away."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"\+{0,2}[\w.@/-]+", name) and not name.startswith("--"):
            yield name.lstrip("+"), _value(value)
        elif name.startswith("~"):
            yield name[1:], None


def _flags(words: list[str]) -> Iterator[tuple[str, Any]]:
    """`--name value …`, `--name=value`, and `--name` alone, which is true."""
    k = 0
    while k < len(words):
        name, equals, value = words[k].partition("=")
        k += 1
        if not re.fullmatch(r"--[A-Za-z][\w.-]*", name):
            continue
        name = name.lstrip("-")
        if equals:
            yield name, _value(value)
            continue
        start = k
        while k < len(words) and not re.match(r"--?[A-Za-z]", words[k]):
            k += 1
        found = [_value(word.rstrip(",")) for word in words[start:k]]
        yield name, True if not found else found[0] if len(found) == 1 else found


def _value(text: str) -> Any:
    """A value on a command line, as OmegaConf and argparse read it where a number, a list or a truth is wanted."""
    if UNSET in text or re.fullmatch(r"[\w./:$~-]*://.*|~.*|.*[^\\]: .*", text):
        return text
    if text in ("None", "none"):
        return None
    try:
        value = parse_value(text)
    except ConfigError:
        return text
    return text if isinstance(value, dict) and (not text.startswith("{") or None in value.values()) else value


def _of_python(file: Path, text: str, framework: str | None, over: Mapping[str, Any], **options: Any) -> Foreign:
    calls = read_calls(text, file, options)
    if calls.verl and framework in (None, "verl") and not calls.uses_trl:
        return Foreign(file, "verl", {**calls.verl, **over})
    if framework not in (None, "trl"):
        raise ConfigError(
            f"{file}: Python is read of TRL's scripts, and for verl's keys in a dict, only",
            fix="Convert the YAML or the launch script.",
        )
    if not calls.uses_trl:
        raise _unknown(file)
    values = {**({"num_processes": 1} if file.suffix == ".ipynb" else {}), **calls.values}
    task = calls.task
    doc = calls.doc
    if task and not _TASKS["trl"].fullmatch(file.name):  # it may be called after anything
        doc = re.sub(rf"\S*\b{re.escape(file.name)}", f"{task.removesuffix('Config').lower()}.py", doc)
    for found in _COMMAND_LINE.finditer(doc):
        started = (_of_command(file, each, "trl", {}) for each in read_commands(found[0])[True])
        try:
            line = next(filter(None, started), None)
        except ConfigError:
            continue
        if line is not None and len(line.values) > 1:
            values = {**line.values, **values} if calls.task else {**values, **line.values}
            task = task or line.task
            break
    notes = []
    if others := ", ".join(calls.others):
        notes.append(
            f"model.path: the script trains by {others}, too: start from what that makes, where it comes first"
        )
    if re.search(r"PeftModel\.from_pretrained\([^()]*is_trainable ?= ?True", text):
        notes.append("model.path: an adapter that is there goes on being trained; merge it into a model to start from")
    if calls.changes:
        done = " and ".join(calls.changes)
        notes.append(f"dataset.train: rows go through {done} there; a `dataset(split)` of the recipe can do that")
    return Foreign(file, "trl", {**values, **over}, task or file.stem, calls.rewards, notes=tuple(notes))


def _unknown(file: Path) -> ConfigError:
    return ConfigError(
        f"{file} is no configuration or launch script of {', '.join(FRAMEWORKS)} that is known",
        fix="Say whose it is by --from, and name a YAML file, a launch script, or TRL's Python script or notebook.",
    )


# ---- OmegaConf's YAML: `${a.b}` resolved, nested and escaped, without running any resolver. Pure
# Hydra's `defaults` list composes files of an installed package: refused, with what to do.


_DEEPEST = 32  # interpolations inside each other


def resolved(values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The same tree with every interpolation replaced. Raises ConfigError for a circle.

    One that leads nowhere is marked: programs have defaults that their files don't say.
    """
    if "defaults" in values:
        raise ConfigError(
            f"{file}: `defaults` composes files of a Python package, which are not here",
            fix="Write the composed configuration out: add `--cfg job --resolve` to the command, and convert that.",
        )
    return {name: _resolve(value, values, (str(name),), file, 0) for name, value in values.items()}


def _composed(values: dict[str, Any], file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Hydra's `defaults`: files beside this one under its keys. verl's own parts are what a file leaves out anyway.

    Where others are named, they stay for the refusal.
    """
    made: dict[str, Any] = {}
    own = {name: value for name, value in values.items() if name not in ("defaults", "hydra")}
    parts = values.get("defaults") or []
    for part in parts if "_self_" in parts else [*parts, "_self_"]:
        group, name = next(iter(part.items()), ("", "")) if isinstance(part, dict) else ("", part)
        folder, placed, place = str(group).partition("@")
        beside = file.parent / folder / f"{name}.yaml"
        if part == "_self_":
            inner = own
        elif beside.is_file() and beside not in (file, *above):
            inner = _composed(_tree(beside.read_text(), beside), beside, (file, *above))
        elif placed or "hydra/" in str(group) or re.fullmatch(r"\w+_trainer\w*", str(part)):
            continue
        else:
            return values
        for key, value in leaves(inner):
            _set(made, [*filter(None, (place or folder).replace("/", ".").split(".")), *key.split(".")], value)
    return made


def _resolve(value: Any, root: Mapping[str, Any], place: tuple[str, ...], file: Path, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _resolve(inner, root, (*place, str(name)), file, depth) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, root, (*place, str(k)), file, depth) for k, inner in enumerate(value)]
    if value == "???":  # a value that must be given
        return f"{UNSET}???{UNSET}"
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > _DEEPEST:
        raise ConfigError(f"{file}: {'.'.join(place)} refers to itself: {value}", fix="Break the circle there.")
    parts = _parts(value, root, place, file, depth)
    return parts[0] if len(parts) == 1 else "".join("" if part is None else _text(part) for part in parts)


def _parts(text: str, root: Mapping[str, Any], place: tuple[str, ...], file: Path, depth: int) -> list[Any]:
    """Literal texts and values of a string, in order. A backslash before `${` makes it literal."""
    parts: list[Any] = []
    literal, k = "", 0
    while k < len(text):
        if text.startswith("\\${", k) and not text.startswith("\\\\${", k - 1):
            literal, k = literal + "${", k + 3
        elif text.startswith("\\\\${", k):
            literal, k = literal + "\\", k + 2
        elif text.startswith("${", k):
            end = _closing(text, k, file, place)
            if literal:
                parts.append(literal)
            inner = _resolve(text[k + 2 : end], root, place, file, depth + 1)
            parts.append(_lookup(str(inner).strip(), root, place, file, depth))
            literal, k = "", end + 1
        else:
            literal, k = literal + text[k], k + 1
    return [*parts, literal] if literal or not parts else parts


def _closing(text: str, start: int, file: Path, place: tuple[str, ...]) -> int:
    depth = 0
    for k in range(start, len(text)):
        depth += (text[k] == "{") - (text[k] == "}")
        if text[k] == "}" and not depth:
            return k
    raise ConfigError(f"{file}: {'.'.join(place)}: {text!r} has no closing brace", fix="Close the interpolation there.")


def _lookup(path: str, root: Mapping[str, Any], place: tuple[str, ...], file: Path, depth: int) -> Any:
    resolver, colon, rest = path.partition(":")
    fallback: tuple[Any, ...] = ()
    if colon:
        if resolver == "mul" and all(part.strip().isdigit() for part in rest.split(",")):
            return math.prod(int(part) for part in rest.split(","))
        if resolver == "oc.env":
            name, comma, other = rest.partition(",")
            return parse_value(other.strip()) if comma else f"{UNSET}${name.strip()}{UNSET}"
        if resolver != "oc.select":
            raise ConfigError(
                f"{file}: {'.'.join(place)}: the resolver {resolver!r} runs code, which is not done here",
                fix=f"Write its value: areal convert {file} {'.'.join(place)}=…",
            )
        path, comma, other = rest.partition(",")
        fallback = (parse_value(other.strip()),) if comma else (None,)
    dots = len(path) - len(path.lstrip("."))
    base = place[: len(place) - dots] if dots else ()
    keys = [*base, *path.strip().strip(".").replace("]", "").replace("[", ".").split(".")]
    value: Any = root
    for key in keys:
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            if fallback:
                return fallback[0]
            return f"{UNSET}${{{'.'.join(keys)}}}{UNSET}"  # a default of the program's own, or a slip
    return _resolve(value, root, tuple(keys), file, depth + 1)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
