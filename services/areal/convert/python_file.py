"""Arguments of TRL's configuration classes in a Python script, read from its syntax tree: never executed."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal.convert.draft import UNSET
from areal.errors import ConfigError

_CONFIGS = ("GRPOConfig", "AsyncGRPOConfig", "RLOOConfig", "SFTConfig", "DPOConfig", "RewardConfig")
_OTHERS = {"LoraConfig": {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules"},
           "ModelConfig": {}, "ScriptArguments": {}}  # fmt: skip
_PARSED = object()  # comes from the script's command line


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
    return given


class _Names:
    """Constants that a script gives names to, and defaults of its command line."""

    def __init__(self, tree: ast.Module) -> None:
        self._assigned: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assigned.setdefault(name, value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assigned.setdefault(name, value)
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(flag)), *_]):
                    default = next((each.value for each in node.keywords if each.arg == "default"), ast.Constant(None))
                    self._assigned.setdefault(f"args.{flag.lstrip('-').replace('-', '_')}", default)

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
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.Name(id=name) if name in self._assigned:
                return self.value(self._assigned[name], depth + 1)
            case ast.Attribute(value=ast.Name(id=holder), attr=name) if f"args.{name}" in self._assigned:
                return self.value(self._assigned[f"args.{name}"], depth + 1) if holder.endswith("args") else _PARSED
            case ast.Attribute(value=ast.Name(id=holder)) if holder.endswith("args"):
                return _PARSED
            case ast.BoolOp(op=ast.Or(), values=[*_, last]):
                return self.value(last, depth + 1)
        return f"{UNSET}{ast.unparse(node)}{UNSET}"
