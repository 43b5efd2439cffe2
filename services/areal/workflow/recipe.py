"""Loading a recipe: the user's Python file with a reward, workflows, a dataset, or a training loop.

Promises that a wrong file is one DataError that names the line and the fix. Runs user code in this process: only
workers, the custom reward's pool, `areal prepare` and the trainer load recipes.
"""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from areal.errors import DataError
from areal.workflow.base import RolloutWorkflow
from areal.workflow.command import CommandAgent

REWARD_ARGUMENTS = ("prompt", "completions", "prompt_ids", "completion_ids")
_REWARD_SHAPE = f"def reward({', '.join(REWARD_ARGUMENTS)}, **row) -> float"


@dataclass(frozen=True)
class Recipe:
    """What a recipe file defines; parts it doesn't define are None."""

    path: Path
    module: ModuleType
    digest: str
    reward: Callable[..., float] | None = None
    workflows: Mapping[str, type[RolloutWorkflow]] = field(default_factory=dict)
    dataset: Callable[[str], Iterable[dict[str, Any]]] | None = None
    train: Callable[[Any], Any] | None = None
    compute_advantages: Callable[..., Any] | None = None
    compute_loss: Callable[..., Any] | None = None
    graph: Callable[[Any], Any] | None = None


def load_recipe(path: Path | str) -> Recipe:
    """Run the file and collect what it defines. Raises DataError for whatever is wrong with it."""
    file = Path(path)
    if not file.is_file():
        raise DataError(f"recipe {file} does not exist", fix="correct recipe.file in the job")
    source = file.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    module = _run(file, f"areal_recipe_{digest[:12]}")
    reward = _function(module, file, "reward")
    if reward is not None:
        _check_reward(reward, file)
    return Recipe(
        path=file,
        module=module,
        digest=digest,
        reward=reward,
        workflows=_workflows(module, file),
        dataset=_function(module, file, "dataset", takes=("split",)),
        train=_function(module, file, "train", takes=("ctx",)),
        compute_advantages=_function(module, file, "compute_advantages"),
        compute_loss=_function(module, file, "compute_loss"),
        graph=_function(module, file, "graph", takes=("ctx",)),
    )


class _RecipeLoader(SourceFileLoader):
    """Loader without bytecode: nothing is left beside the user's file, and an edit of the same second counts."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(file: Path, name: str) -> ModuleType:
    loader = _RecipeLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None or file.suffix != ".py":
        raise DataError(f"recipe {file} is no Python file", fix="give it the ending .py")
    module = importlib.util.module_from_spec(spec)
    had_torch = "torch" in sys.modules
    sys.modules[name] = module  # dataclasses and pickles look their module up by name
    try:
        loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        place = f"{file}:{line}" if (line := _line_of(error, file)) else str(file)
        raise DataError(f"{place}: {type(error).__name__}: {error}", fix=_import_fix(error)) from error
    if not had_torch and "torch" in sys.modules:
        sys.modules.pop(name, None)
        raise DataError(
            f"recipe {file} imports torch, which workers don't have",
            fix="import it inside train(), or in the file that trainer.hooks names",
        )
    return module


def _line_of(error: BaseException, file: Path) -> int | None:
    """The deepest line of the recipe itself in the error's traceback."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return lines[-1] if lines else None


def _import_fix(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name} where workers and rewards run, or remove the import"
    if isinstance(error, SyntaxError):
        return "correct the syntax at this line"
    return "correct this line: a recipe must import without an error"


def _function(
    module: ModuleType, file: Path, name: str, *, takes: tuple[str, ...] | None = None
) -> Callable[..., Any] | None:
    found = vars(module).get(name)
    if found is None:
        return None
    if not callable(found):
        raise DataError(f"{file}: {name} is a {type(found).__name__}, not a function", fix=f"define `def {name}(…)`")
    if takes is not None:
        try:
            inspect.signature(found).bind(*takes)
        except TypeError as error:
            raise DataError(
                f"{_place(found, file)}: {name}() can't be called with ({', '.join(takes)}): {error}",
                fix=f"define `def {name}({', '.join(takes)})`",
            ) from error
    return found  # type: ignore[no-any-return]


def _check_reward(reward: Callable[..., Any], file: Path) -> None:
    place = _place(reward, file)
    if inspect.iscoroutinefunction(reward):
        raise DataError(f"{place}: reward is async", fix=f"make it a plain function: {_REWARD_SHAPE}")
    parameters = inspect.signature(reward).parameters
    takes_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    first = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
    if tuple(first[: len(REWARD_ARGUMENTS)]) != REWARD_ARGUMENTS or not takes_rest:
        shown = f"reward{inspect.signature(reward)}"
        fix = f"define `{_REWARD_SHAPE}`"
        if "completions" in first[:2] and "prompt_ids" not in first:
            fix += "; TRL's takes and returns lists: `return theirs(prompts=[prompt], completions=[completions], …)[0]`"
        if "solution_str" in first:
            fix += "; of verl's: `return theirs(row['data_source'], completions, row['reward_model']['ground_truth'])`"
        raise DataError(f"{place}: {shown} has the wrong arguments", fix=fix)


def needed_columns(reward: Callable[..., Any] | None) -> frozenset[str]:
    """Columns that every row must have, because the reward takes them by name and has no default for them."""
    if reward is None:
        return frozenset()
    return frozenset(
        name
        for name, parameter in inspect.signature(reward).parameters.items()
        if name not in REWARD_ARGUMENTS
        and parameter.default is parameter.empty
        and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )


def agents_of(module: ModuleType) -> dict[str, Any]:
    """What a recipe defines that can be an agent: an async function, or a class or object with an async `run`."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (getattr(value, "__module__", module.__name__) == module.__name__ or isinstance(value, CommandAgent))
        and (_takes_an_episode(value) or _takes_an_episode(getattr(value, "run", None), given_self=_is_method(value)))
    }


def _is_method(value: Any) -> bool:
    """Whether it is a class whose `run` is an ordinary method."""
    return inspect.isclass(value) and inspect.isfunction(inspect.getattr_static(value, "run", None))


def _takes_an_episode(run: Any, *, given_self: bool = False) -> bool:
    """Whether it can be called as an agent is."""
    if not inspect.iscoroutinefunction(run):
        return False
    try:
        inspect.signature(run).bind(*([None] * (1 + given_self)), base_url="", api_key="", http_client=None)
    except TypeError:
        return False
    return True


def _workflows(module: ModuleType, file: Path) -> dict[str, type[RolloutWorkflow]]:
    found: dict[str, type[RolloutWorkflow]] = {}
    for value in vars(module).values():
        if not (inspect.isclass(value) and issubclass(value, RolloutWorkflow) and value.__module__ == module.__name__):
            continue
        missing: frozenset[str] = getattr(value, "__abstractmethods__", frozenset())
        if missing := missing - {"arun_episode"}:
            raise DataError(
                f"{file}: workflow {value.__name__} doesn't define {', '.join(sorted(missing))}",
                fix=f"define it as in {value.__mro__[1].__name__}",
            )
        if inspect.isabstract(value) or not inspect.iscoroutinefunction(value.arun_episode):
            raise DataError(
                f"{file}: workflow {value.__name__} defines no `async def arun_episode`",
                fix="define `async def arun_episode(self, engine, row)`",
            )
        name = str(vars(value).get("name") or value.__name__)
        if name in found:
            raise DataError(f"{file}: two workflows are named {name!r}", fix="give each its own `name`")
        found[name] = value
    return found


def _place(function: Any, file: Path) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{file}:{code.co_firstlineno}" if code is not None and code.co_filename == str(file) else str(file)
