"""Arguments of TRL's configuration classes in a Python script, read from its syntax tree: never executed."""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal.convert.draft import UNSET
from areal.convert.shell import SIGNS
from areal.errors import ConfigError

_CONFIGS = ("GRPOConfig", "AsyncGRPOConfig", "RLOOConfig", "SFTConfig", "DPOConfig", "RewardConfig")
LORA = {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules"}
_OTHERS: dict[str, dict[str, str]] = {"LoraConfig": LORA, "ModelConfig": {}, "ScriptArguments": {}}
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e-?\d+)?")
_PARSED = object()  # comes from the script's command line
_AS_GIVEN = {"str": 0, "Path": 0, "int": 0, "float": 0, "typer.Option": 0, "typer.Argument": 0, "os.getenv": 1,
             "os.environ.get": 1}  # fmt: skip  # calls that change no value, and the place of what they are given


def _known(value: Any) -> bool:
    return value is not _PARSED and UNSET not in str(value)


@dataclass
class Calls:
    """Arguments of a script: `values` by argument, the configuration's class as `task`, reward functions by name."""

    doc: str = ""
    uses_trl: bool = False
    task: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    rewards: tuple[str, ...] = ()


def read_calls(text: str, file: Path) -> Calls:
    """Raises ConfigError for what is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{file}: this is no Python: {error}", fix="Name TRL's training script.") from None
    found = Calls(doc=ast.get_docstring(tree) or "")
    names = _Names(tree)
    nodes = list(ast.walk(tree))
    found.uses_trl = any(
        (isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "trl")
        or (isinstance(node, ast.Import) and any(each.name == "trl" for each in node.names))
        for node in nodes
    )
    for node in nodes:
        if isinstance(node, ast.Call):
            last_name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            _read_call(last_name, _arguments(node, names), node, names, found)
    found.task = found.task or next((name for name in _imported(nodes) if name in _CONFIGS), "")
    found.task = found.task or next((name for name in _imported(nodes) if name.endswith("Config")), "")
    found.values = {key: value for key, value in found.values.items() if value is not _PARSED}
    return found


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
    if name in _CONFIGS:
        found.task = found.task or name
        found.values |= given
    elif name in _OTHERS:
        renamed = _OTHERS[name]
        found.values |= {renamed.get(key, f"lora.{key}" if renamed else key): value for key, value in given.items()}
        if renamed:
            found.values["use_peft"] = True
    elif name.endswith("Trainer"):
        if isinstance(model := given.get("model"), str) and UNSET not in model:
            found.values.setdefault("model_name_or_path", model)
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
    elif name == "from_pretrained" and node.args and "ModelFor" in ast.unparse(node.func):
        found.values.setdefault("model_name_or_path", names.value(node.args[0]))


def _arguments(node: ast.Call, names: "_Names") -> dict[str, Any]:
    given: dict[str, Any] = {}
    for keyword in node.keywords:
        value = names.value(keyword.value)
        if keyword.arg is not None:
            given[keyword.arg] = value
        elif isinstance(value, Mapping):
            given |= value
        else:  # an unknown key of the list that its author looks through
            given[f"**{ast.unparse(keyword.value)}"] = "taken from elsewhere"
    return given


class _Names:
    """Constants that a script gives names to, defaults of its command line, its classes and its functions."""

    def __init__(self, tree: ast.Module) -> None:
        self._assigned: dict[str, ast.expr] = {}
        self._parameters: dict[ast.AST, dict[str, ast.expr]] = {}  # of the functions that a node lies in
        nodes = list(ast.walk(tree))
        calls: dict[str, list[ast.Call]] = {}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                calls.setdefault(getattr(node.func, "id", getattr(node.func, "attr", "")), []).append(node)
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        fields = {id(each): each for node in classes for each in node.body if isinstance(each, ast.AnnAssign)}
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assigned.setdefault(name, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assigned.setdefault(f".{name}" if id(node) in fields else name, value)
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(flag)), *_]):
                    said = {each.arg: each.value for each in node.keywords}
                    if "required" not in said:  # else only its command line knows
                        default = said.get("default", ast.Constant(None))
                        self._assigned.setdefault(f"args.{flag.lstrip('-').replace('-', '_')}", default)
                case ast.FunctionDef(name=name):
                    self._bind(node, calls.get(name, []))
        several = Counter(each.target.id for each in fields.values() if isinstance(each.target, ast.Name))
        for name in [name for name, count in several.items() if count > 1]:
            self._assigned.pop(f".{name}", None)

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
                return {str(self.value(key, depth + 1)): self.value(value, depth + 1)
                        for key, value in zip(keys, values, strict=True) if key is not None}  # fmt: skip
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return {str(each.arg): self.value(each.value, depth + 1) for each in keywords}
            case ast.Call(func=ast.Name(id="field"), keywords=said) if "default" in {each.arg for each in said}:
                return self.value(next(each.value for each in said if each.arg == "default"), depth + 1)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.FormattedValue(value=inner, format_spec=None):
                return self.value(inner, depth + 1)
            case ast.JoinedStr(values=parts):
                said = [self.value(each, depth + 1) for each in parts]
                if all(map(_known, said)):
                    return "".join(map(str, said))
            case ast.Name(id=name) if name in (given := self._parameters.get(node, {})) or name in self._assigned:
                return self.value(given[name] if name in given else self._assigned[name], depth + 1)
            case ast.Attribute(value=ast.Name(id=holder), attr=name) if f"args.{name}" in self._assigned:
                return self.value(self._assigned[f"args.{name}"], depth + 1) if holder.endswith("args") else _PARSED
            case ast.Attribute(attr=name) if f".{name}" in self._assigned:
                return self.value(self._assigned[f".{name}"], depth + 1)
            case ast.Attribute(value=ast.Name(id=holder)) if holder.endswith("args"):
                return _PARSED
            case ast.BoolOp(op=ast.Or(), values=[*firsts, last]):
                found = [self.value(each, depth + 1) for each in firsts]
                return next((each for each in found if each and _known(each)), None) or self.value(last, depth + 1)
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
