"""TRL's arguments in a Python script, and verl's keys in a dict, read from its syntax tree: never executed."""

import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal.convert.draft import UNSET
from areal.convert.shell import SIGNS
from areal.errors import ConfigError
from areal.spec.locate import leaves

_RL = ("GRPOConfig", "AsyncGRPOConfig", "RLOOConfig")
_CONFIGS = (*_RL, "SFTConfig", "DPOConfig", "RewardConfig")
_TRAINERS = {f"{name.removesuffix('Config')}Trainer": name for name in _CONFIGS} | {"UnslothTrainer": "SFTConfig"}
_OLDER = ("TrainingArguments", "UnslothTrainingArguments")  # before TRL 0.13, with these of its trainer:
_OF_TRAINER = ("max_seq_length", "max_length", "max_prompt_length", "packing", "dataset_text_field", "beta")
LORA = {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules"}
_OTHERS: dict[str, dict[str, str]] = {"LoraConfig": LORA, "ModelConfig": {}, "ScriptArguments": {}}
_MODEL = re.compile(r"^(?!.*Peft).*ModelFor|(Fast\w*Model)")  # of transformers, of Unsloth
_PATH = "pretrained_model_name_or_path"
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e-?\d+)?")
_SHELL = re.compile(r"^([ \t]*)(?:!|%%?[A-Za-z]|\?)(?:.*\\\n)*.*$", re.MULTILINE)
_PARSED = object()  # comes from the script's command line
_AS_GIVEN = {"str": 0, "Path": 0, "bool": 0, "int": 0, "float": 0, "typer.Option": 0, "typer.Argument": 0,
             "os.getenv": 1, "os.environ.get": 1}  # fmt: skip  # changes no value; the place of what it is given


def _known(value: Any) -> bool:
    return value is not _PARSED and UNSET not in str(value)


@dataclass
class Calls:
    """Arguments of a script: `values` by argument, the configuration's class as `task`, the classes of `others` that it
    trains by, reward functions by name."""

    doc: str = ""
    uses_trl: bool = False
    task: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    rewards: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()  # what is called of its rows before they are trained
    verl: dict[str, Any] = field(default_factory=dict)  # keys of verl's, of the largest dict that has them


def code_of(notebook: str, file: Path) -> str:
    """Python of a Jupyter notebook, without the lines that its shell or its magic reads. Raises ConfigError."""
    try:
        cells = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no notebook: {error!r}", fix="Name a file that Jupyter wrote.") from None
    sources = [each for each in sources if not re.match(r"\s*%%(?!capture|time)", each)]
    return "\n".join(_SHELL.sub(r"\1pass", each) for each in sources)


def read_calls(text: str, file: Path, options: Mapping[str, Any] | None = None) -> Calls:
    """`options` are what its command line says. Raises ConfigError for what is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{file}: this is no Python: {error}", fix="Name TRL's training script.") from None
    found = Calls(doc=ast.get_docstring(tree) or "")
    names = _Names(tree, options or {})
    nodes = list(ast.walk(tree))
    found.uses_trl = any(
        (isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "trl")
        or (isinstance(node, ast.Import) and any(each.name == "trl" for each in node.names))
        for node in nodes
    )
    dicts = [names.value(each) for each in nodes if isinstance(each, ast.Dict)]
    keyed = [dict(leaves(each)) for each in dicts if {"actor_rollout_ref", "data"} <= each.keys()]
    for key, value in max(keyed, key=len, default={}).items():
        found.verl[key] = f"{UNSET}{key}{UNSET}" if value is _PARSED else value
    calls = sorted(
        (each for each in nodes if isinstance(each, ast.Call)), key=lambda each: (each.lineno, each.col_offset)
    )
    made = [_name(each) for each in calls if _name(each) in _CONFIGS]
    left_out = _OLDER if made else ()  # where TRL's own is, they are of something else
    made = made or [_TRAINERS[_name(each)] for each in calls if _name(each) in _TRAINERS]
    found.task = next((name for name in made if name in _RL), made[-1] if len(set(made)) > 1 else "".join(made[:1]))
    found.others = tuple(sorted({*made} - {found.task}))
    trainers = [each for each in calls if _TRAINERS.get(_name(each)) == found.task]
    rows = next((each.value for node in trainers for each in node.keywords if each.arg == "train_dataset"), None)
    loaded, passed = (None, []) if rows is None else names.made_by(rows, "load_dataset", trainers[0].lineno)
    loaded = loaded or next((each for each in calls if _name(each) == "load_dataset"), None)
    done = {_name(each) for node in passed for each in ast.walk(node) if isinstance(each, ast.Call)}
    found.changes = tuple(sorted(done & {"map", "filter"}))
    for node in [loaded, *calls] if loaded else calls:
        if _TRAINERS.get(_name(node), _name(node)) not in (*found.others, *left_out):
            _read_call(_name(node), _arguments(node, names), node, names, found)
    found.task = found.task or next((name for name in _imported(nodes) if name in _CONFIGS), "")
    found.task = found.task or next((name for name in _imported(nodes) if name.endswith("Config")), "")
    found.values = {key: value for key, value in found.values.items() if value is not _PARSED}
    return found


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _imported(nodes: list[ast.AST]) -> list[str]:
    """Classes of trl that a script imports, but for those of every training."""
    return [
        each.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "trl"
        for each in node.names
        if each.name not in _OTHERS
    ]


def _read_call(name: str, given: dict[str, Any], node: ast.Call, names: "_Names", found: Calls) -> None:
    given = {key: value for key, value in given.items() if value is not _PARSED}
    if name in _OLDER:
        found.values |= {"learning_rate": 5e-5, **found.values, **given}
    elif name in _CONFIGS:
        found.values |= given
    elif name in _OTHERS or (name == "get_peft_model" and "r" in given):  # Unsloth's; peft's takes a LoraConfig
        renamed = _OTHERS.get(name, LORA)
        found.values |= {renamed.get(key, f"lora.{key}" if renamed else key): value for key, value in given.items()}
        if renamed:
            found.values["use_peft"] = True
    elif name.endswith("Trainer"):
        if isinstance(model := given.get("model"), str) and UNSET not in model:
            found.values.setdefault("model_name_or_path", model)
        found.values |= {key: value for key, value in given.items() if key in _OF_TRAINER}
        rewards = next((key.value for key in node.keywords if key.arg == "reward_funcs"), None)
        if rewards is not None:
            items = rewards.elts if isinstance(rewards, ast.List | ast.Tuple) else [rewards]
            found.rewards = tuple(ast.unparse(item) for item in items)
    elif name == "load_dataset" and node.args and "dataset_name" not in found.values:
        first = names.value(node.args[0])
        if first in ("json", "parquet", "csv"):  # builders: the rows are in the files that they are given
            first = given.get("data_files")
        if isinstance(first, str):
            found.values["dataset_name"] = first
            if len(node.args) > 1 and isinstance(second := names.value(node.args[1]), str):
                found.values["dataset_config"] = second
            split = given.get("split")
            split = split[0] if isinstance(split, list) and split else split
            if isinstance(split, str):
                found.values["dataset_train_split"] = split
    elif name == "from_pretrained" and (of := _MODEL.search(ast.unparse(node.func))):
        path = names.value(node.args[0]) if node.args else given.get("model_name", given.get(_PATH))
        if "model_name_or_path" not in found.values and path is not None:
            found.values["model_name_or_path"] = path
            found.values |= {
                key: value for key, value in given.items() if of[1] and key.startswith("load_in_") and value
            }


def _arguments(node: ast.Call, names: "_Names", depth: int = 0) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for keyword in node.keywords:
        value = names.value(keyword.value, depth)
        if keyword.arg is not None:
            given[keyword.arg] = value
        elif isinstance(value, Mapping):
            given |= value
        else:  # an unknown key of the list that its author looks through
            given[f"**{ast.unparse(keyword.value)}"] = "taken from elsewhere"
    return given


class _Names:
    """Constants that a script gives names to, defaults of its command line, its classes and its functions."""

    def __init__(self, tree: ast.Module, options: Mapping[str, Any]) -> None:
        self._assigned: dict[str, ast.expr] = {}
        self._local: dict[tuple[ast.AST | None, str], ast.expr] = {}
        self._later = defaultdict[tuple[ast.AST | None, str], list[tuple[bool, list[ast.keyword]]]](
            list
        )  # (certain, …)
        self._returned = defaultdict[str, list[ast.expr]](list)
        self._made: dict[str, list[ast.Assign | ast.FunctionDef]] = {}  # all that gives a name its value
        self._parameters: dict[ast.AST, dict[str, ast.expr]] = {}  # of the functions that a node lies in
        nodes = list(ast.walk(tree))
        calls: dict[str, list[ast.Call]] = {}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                calls.setdefault(getattr(node.func, "id", getattr(node.func, "attr", "")), []).append(node)
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]  # outer ones first
        self._inside = {each: node for node in functions for each in ast.walk(node)}
        uncertain = {each for node in nodes if isinstance(node, ast.If) for each in ast.walk(node)}
        fields = {id(each): each for node in classes for each in node.body if isinstance(each, ast.AnnAssign)}
        for node in nodes:
            here = self._inside.get(node)
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._local.setdefault((here, name), value)
                    self._assigned.setdefault(name, value)
                    self._made.setdefault(name, []).append(node)
                case ast.Assign(targets=[ast.Tuple(elts=given)], value=ast.Tuple(elts=values)):
                    for each, value in zip(given, values, strict=False):
                        self._assigned.setdefault(ast.unparse(each), value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assigned.setdefault(f".{name}" if id(node) in fields else name, value)
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(flag)), *_]):
                    said = {each.arg: each.value for each in node.keywords}
                    if "required" not in said:  # else only its command line knows
                        default = said.get("default", ast.Constant(None))
                        self._assigned.setdefault(f"args.{flag.lstrip('-').replace('-', '_')}", default)
                case ast.Assign(targets=[ast.Subscript(ast.Name(id=name), ast.Constant(value=str(key)))], value=value):
                    self._later[here, name].append((node not in uncertain, [ast.keyword(key, value)]))
                case ast.Call(func=ast.Attribute(ast.Name(id=name), "update"), args=[*given], keywords=keywords):
                    more = [*(ast.keyword(None, each) for each in given), *keywords]
                    self._later[here, name].append((node not in uncertain, more))
                case ast.Return(value=ast.expr() as value) if here is not None:
                    self._returned[here.name].append(value)
                case ast.FunctionDef(name=name):
                    self._made.setdefault(name, []).append(node)
                    self._bind(node, calls.get(name, []))
        several = Counter(each.target.id for each in fields.values() if isinstance(each.target, ast.Name))
        for name in [name for name, count in several.items() if count > 1]:
            self._assigned.pop(f".{name}", None)
        line = {f"{holder}.{option}": ast.Constant(options[option]) for option in options for holder in ("args", "")}
        self._assigned |= {key: given for key, given in line.items() if key in self._assigned or key[0] != "."}

    def _bind(self, function: ast.FunctionDef, calls: list[ast.Call]) -> None:
        """Parameters of a function that is called in one place, or from outside: what is given, else the default."""
        taken = function.args
        names = [each.arg for each in taken.args]
        found = dict(zip(reversed(names), reversed(taken.defaults), strict=False))
        found |= {each.arg: value for each, value in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if value}
        for call in calls:
            own = isinstance(call.func, ast.Attribute) and names[:1] in (["self"], ["cls"])
            found |= dict(zip(names[own:], call.args, strict=False))
            found |= {each.arg: each.value for each in call.keywords if each.arg}
        inside = list(ast.walk(function))
        assigned = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        kept = {name: value for name, value in found.items() if name not in assigned and ast.unparse(value) != name}
        for each in inside if len(calls) < 2 else ():
            self._parameters[each] = self._parameters.get(each, {}) | kept

    def made_by(self, node: ast.AST, called: str, line: int) -> tuple[ast.Call | None, list[ast.AST]]:
        """The call of `called` from which a value comes that is used at a line: the last before it, by names; and all
        that it goes through."""
        waiting, known, passed = [(node, line)], set[ast.AST](), list[ast.AST]()
        while waiting:
            node, line = waiting.pop()
            passed.append(node)
            inside = list(ast.walk(node))
            for each in inside:
                if isinstance(each, ast.Call) and _name(each) == called:
                    return each, passed
            used = [each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
            before = [each for name in reversed(used) for each in self._made.get(name, ()) if each.lineno < line]
            fresh = [each for each in before if each not in known]
            known.update(fresh)
            waiting += [(each, each.lineno) for each in fresh]
        return None, []

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """A constant; what is computed comes as a mark with its source text."""
        if depth > 8:
            return f"{UNSET}{ast.unparse(node)}{UNSET}"
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item, depth + 1) for item in items]
            case ast.Dict(keys=keys, values=values):
                pairs = [(None if key is None else str(self.value(key, depth + 1)), value)
                         for key, value in zip(keys, values, strict=True)]  # fmt: skip
                return _arguments(ast.Call(node, [], [ast.keyword(*each) for each in pairs]), self, depth + 1)
            case ast.Call(func=ast.Name(id="dict"), args=[]):
                return _arguments(node, self, depth + 1)
            case ast.Call(func=ast.Name(id=name)) if len(self._returned.get(name, ())) == 1:
                if isinstance(found := self.value(self._returned[name][0], depth + 1), dict):
                    return found
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name() as holder, ast.Constant(value=str(name)), *_]):
                return self.value(ast.Attribute(holder, name), depth + 1)
            case ast.Compare(left=ast.Attribute(attr="type"), ops=[ast.Eq()], comparators=[ast.Constant(value="cuda")]):
                return True
            case ast.Call(func=ast.Name(id="field"), keywords=said) if "default" in str([k.arg for k in said]):
                fresh = next(each.value for each in said if str(each.arg).startswith("default"))
                return self.value(getattr(fresh, "body", fresh), depth + 1)
            case ast.Call(func=called, args=[]) if re.search(r"is_(bf\w+_supported|available)$", ast.unparse(called)):
                return True
            case ast.UnaryOp(op=ast.Not(), operand=inner) if _known(found := self.value(inner, depth + 1)):
                return not found
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.FormattedValue(value=inner, format_spec=None):
                return self.value(inner, depth + 1)
            case ast.JoinedStr(values=parts):
                said = [self.value(each, depth + 1) for each in parts]
                if all(map(_known, said)):
                    return "".join(map(str, said))
            case ast.Name(id=name) if name in (given := self._parameters.get(node, {})) or name in self._assigned:
                here = self._inside.get(node)
                made = given.get(name, self._local.get((here, name), self._assigned.get(name)))
                found = self.value(made or node, depth + 1)
                for certain, more in self._later.get((here, name), ()) if isinstance(found, dict) else ():
                    update = _arguments(ast.Call(node, [], more), self, depth + 1)
                    found |= update if certain else {f'{name}["{key}"]': "taken from elsewhere" for key in update}
                return found
            case ast.Attribute(value=ast.Name(id=holder), attr=name) if f"args.{name}" in self._assigned:
                return self.value(self._assigned[f"args.{name}"], depth + 1) if holder.endswith("args") else _PARSED
            case ast.Attribute(attr=name) if f".{name}" in self._assigned:
                return self.value(self._assigned[f".{name}"], depth + 1)
            case ast.Attribute(value=ast.Name(id=holder)) if holder.endswith("args"):
                return _PARSED
            case ast.BoolOp(op=ast.Or(), values=[*firsts, last]):
                found = [self.value(each, depth + 1) for each in firsts]
                return next((each for each in found if each and _known(each)), None) or self.value(last, depth + 1)
            case ast.BoolOp(op=ast.And(), values=parts) if all(_known(self.value(each, depth + 1)) for each in parts):
                return all(self.value(each, depth + 1) for each in parts)
            case ast.IfExp(test=test, body=body, orelse=other) if _known(asked := self.value(test, depth + 1)):
                return self.value(body if asked else other, depth + 1)
            case ast.Compare(
                left=left, ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq() as sign], comparators=[right]
            ):
                sides = [self.value(each, depth + 1) for each in (left, right)]
                if all(map(_known, sides)):
                    return (sides[0] == sides[1]) == isinstance(sign, ast.Is | ast.Eq)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
                sides = [self.value(each, depth + 1) for each in (left, right)]
                if all(isinstance(each, int | float) for each in sides) and sides[1]:
                    return SIGNS[type(sign)](*sides)
            case ast.Call(func=called, args=[_, *_]) if (place := _AS_GIVEN.get(ast.unparse(called))) is not None:
                if place < len(node.args):
                    found = self.value(node.args[place], depth + 1)
                    is_text = (
                        isinstance(found, str) and _NUMBER.fullmatch(found) and ast.unparse(called) in ("int", "float")
                    )
                    return float(found) if is_text else found
            case ast.ListComp(elt=made, generators=[ast.comprehension(target=ast.Name(id=item), iter=items)]):
                if ast.unparse(made) in (item, f"{item}.strip()") and isinstance(found := self.value(items), list):
                    return [each.strip() for each in found if str(each).strip()]
            case ast.Call(func=ast.Attribute(attr="split", value=inner), args=[ast.Constant(value=str(joint))]):
                if isinstance(text := self.value(inner, depth + 1), str) and _known(text):
                    return text.split(joint)
        return f"{UNSET}{ast.unparse(node)}{UNSET}"
