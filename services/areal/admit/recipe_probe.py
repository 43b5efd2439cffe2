"""Imports a recipe in a process of its own and says what it defines: user code never runs in the supervisor.

`python -m areal.admit.recipe_probe RECIPE SECONDS` prints one JSON line last, whatever the recipe itself prints. Its
input is JSON: the job's `spec`, with which a recipe's `graph(ctx)` is made, matched and tried, and `items`, real rows
with a right, a wrong and an empty answer, of which `reward` is asked, and `episode`, which the job's own workflow or
agent plays. Only that and a graph load what understands jobs: the process is in every check's time.
"""

from __future__ import annotations

import ast
import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.errors import ArealError, DataError, Kind, by_kind
from areal.spec.locate import refuse_pipes
from areal.workflow.recipe import Recipe, agents_of, load_recipe, needed_columns

if TYPE_CHECKING:
    from areal.dataflow.stages import Graph
    from areal.spec.job import JobSpec

_CPU_LIMIT_S = 60  # a recipe that needs more would time workers out, too; waiting for a busy machine doesn't count
_LIMIT_S = 600.0  # for one that sleeps, or waits for a network
SLOW_S = 10.0
_LOOK_S = 0.25
_COMPUTES_S = 10.0  # of processor time for one answer, or for some episodes
_WAITS_S = 10.0  # for an answer whose reward waits for a service
_EPISODES_WAIT_S = 60.0  # for an agent's command, too, which may have to wait for a processor
_CLIENTS = ("aiohttp", "anthropic", "grpc", "httpcore", "httpx", "openai", "requests", "socket", "urllib", "urllib3")


@dataclass(frozen=True)
class DryRun:
    """What came of the episodes: what to say of them, what is suspicious, and why they could not be played."""

    given: Sequence[str] = ()
    warning: str = ""
    unseen: str = ""


@dataclass(frozen=True)
class RecipeParts:
    """What a recipe defines."""

    reward: bool
    workflows: frozenset[str]
    agents: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()  # columns that `reward` can't do without
    seconds: float = 0.0  # of processor time to import it
    graph: Graph | None = None  # of the step, with stages of its own
    given: tuple[str, ...] = ()  # by `reward` for right, wrong and empty answers
    unseen: str = ""  # why `reward` could not be asked
    episode: DryRun = DryRun()


def probe_recipe(
    recipe: Path | None,
    cpu_limit_s: int = _CPU_LIMIT_S,
    *,
    spec: JobSpec | None = None,
    items: Sequence[Mapping[str, Any]] = (),
    episode: Mapping[str, Any] | None = None,
) -> RecipeParts:
    """Import `recipe` elsewhere, in at most `cpu_limit_s` of processor time; raises what is wrong with it.

    With the job's `spec` also what is wrong with its `graph(ctx)`; with `items`, as a reward service is given them,
    what is wrong with its `reward`; with `episode`, a row and the directories of `tokenizer` and `model`, what is wrong
    with its workflow or agent, which may be a command without a recipe.
    """
    told = json.dumps(
        {
            "spec": None if spec is None else spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "items": list(items),
            "episode": episode,
        },
        default=str,
    )
    answer = _answer_of("areal.admit.recipe_probe", recipe, [str(recipe or ""), str(cpu_limit_s)], told, cpu_limit_s)
    return RecipeParts(
        answer["reward"],
        frozenset(answer["workflows"]),
        frozenset(answer["agents"]),
        frozenset(answer["needs"]),
        float(answer["seconds"]),
        _graph_of(answer["graph"]),
        tuple(answer["given"]),
        answer["unseen"],
        DryRun(**answer["episode"]),
    )


def can_try_hooks(spec: JobSpec) -> bool:
    """Whether the trainer's packages are here, and are the ones that the job runs with."""
    return spec.runtime_ref is None and all(find_spec(name) is not None for name in ("torch", "areal_trainer"))


def probe_hooks(recipe: Path | None, hooks: Path | None, spec: JobSpec) -> None:
    """Try a job's `compute_advantages` and `compute_loss` elsewhere, on the batch that the trainer makes up at its
    start; raises what is wrong with them. Needs torch: it takes seconds."""
    told = spec.model_dump_json(by_alias=True, exclude_unset=True)
    words = [str(file) if file is not None else "" for file in (recipe, hooks)]
    _answer_of("areal_trainer.hooks_probe", hooks or recipe, words, told, _CPU_LIMIT_S)


def _answer_of(module: str, recipe: Path | None, words: Sequence[str], told: str, cpu_limit_s: int) -> dict[str, Any]:
    """The last line of a probing process, when it says that nothing is wrong; else that is raised."""
    command = [sys.executable, "-m", module, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, input=told)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"{recipe} takes longer than {_LIMIT_S:g} s to import", fix="do slow work inside functions, not at import"
        ) from None
    if done.returncode == -signal.SIGXCPU:
        raise DataError(
            f"{recipe} takes more than {cpu_limit_s} s of processor time to import",
            fix="do slow work inside functions, not at import",
        )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        kind = answer["kind"]
    except (IndexError, ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise DataError(
            f"{recipe} ends the process that imports it (exit {done.returncode}): {last}",
            fix="a recipe must import without exiting",
        ) from None
    if kind:
        raise by_kind(Kind(kind), answer["message"], fix=answer["fix"])
    return answer


def _graph_of(stages: Any) -> Graph | None:
    if not stages:
        return None
    from areal.dataflow.own import graph_of_json

    return graph_of_json(stages)


def main() -> None:
    """In the probing process."""
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    began = time.process_time()
    told = json.loads(sys.stdin.read() or "{}")
    try:
        recipe = load_recipe(Path(sys.argv[1])) if sys.argv[1] else None
        seconds = time.process_time() - began
        given, unseen = _asked(recipe, told)
        answer = {
            "kind": "",
            "reward": recipe is not None and recipe.reward is not None,
            "workflows": sorted(recipe.workflows if recipe else ()),
            "agents": sorted(agents_of(recipe.module) if recipe else ()),
            "needs": sorted(needed_columns(recipe.reward if recipe else None)),
            "seconds": seconds,
            "graph": _graph(recipe, told.get("spec")),
            "episode": asdict(_played(recipe, told)),
            "given": given,
            "unseen": unseen,
        }
    except ArealError as error:
        answer = {"kind": error.kind.value, "message": error.message, "fix": error.fix}
    print(f"\n{json.dumps(answer)}", flush=True)


def _asked(recipe: Recipe | None, told: Mapping[str, Any]) -> tuple[list[str], str]:
    """Ask `reward` of the items: what it gave for which answers, and why it could not be asked here, or nothing.

    Raises DataError with the line where it fails or answers no finite number.
    """
    items = told.get("items")
    if recipe is None or recipe.reward is None or not items:
        return [], ""
    from areal.reward.scorers.recipe import judge_of, line_of_fault

    judge = judge_of(recipe.reward, ((told.get("spec") or {}).get("reward") or {}).get("weights"))
    given: dict[str, list[float]] = {}
    for item in items:
        if needed_columns(recipe.reward) - item["row"].keys():
            continue  # the look at the rows says so
        place, kind = item.pop("place"), item.pop("kind")
        with _bounded(_WAITS_S):
            said = judge(item)
        if said[0] != "fault":
            given.setdefault(kind, []).append(said[1])
            continue
        _, message, fix, trace = said
        if why := away(trace):
            return [], f"the recipe's reward: {why}"
        line = line_of_fault(recipe.reward, trace)
        raise DataError(f"{recipe.path}:{line}: {message} (for {place}, answer {item['completion']!r:.60})", fix=fix)
    return [f"{kind} answers {', '.join(f'{score:g}' for score in scores)}" for kind, scores in given.items()], ""


def _played(recipe: Recipe | None, told: Mapping[str, Any]) -> DryRun:
    """Episodes of the job's own workflow or agent. Raises DataError when all fail."""
    item = told.get("episode")
    if item is None:
        return DryRun()
    from areal.admit.episode_probe import dry_run
    from areal.reward.scorers.recipe import judge_of
    from areal.spec.job import JobSpec

    spec = JobSpec.model_validate(told["spec"])
    weights = spec.reward.weights

    async def score(asked: dict[str, Any]) -> float:
        if recipe is None or recipe.reward is None:
            return float(asked["completion"] == item["right"])
        ids = {name: list(map(int, asked[name])) for name in ("prompt_ids", "completion_ids")}
        said = judge_of(recipe.reward, weights)({**asked, **ids, "row": dict(asked["row"])})
        if said[0] == "fault":
            raise DataError(f"{said[1]}\n{said[3]}", fix=said[2])
        return float(said[1])

    with _bounded(_EPISODES_WAIT_S):
        return dry_run(recipe, spec, item, score)


@contextmanager
def _bounded(waits_s: float) -> Iterator[None]:
    """TimeoutError in code that computes, or waits, for too long. What a busy machine keeps it waiting for a processor
    counts as neither, so that its verdict is the same at any load."""
    began, computed, delayed = time.monotonic(), time.process_time(), _run_delay_s()

    def look(signum: int, frame: object) -> None:
        computes = time.process_time() - computed
        if computes > _COMPUTES_S or time.monotonic() - began - computes - (_run_delay_s() - delayed) > waits_s:
            raise TimeoutError

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _run_delay_s() -> float:
    """Seconds that this thread was ready to run and had no processor; 0 where the kernel doesn't say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def away(trace: str) -> str:
    """What a reward needs that isn't here, by its traceback; nothing where it fails of itself."""
    kind = trace.strip().splitlines()[-1].split(":")[0] if trace.strip() else ""
    if kind == "TimeoutError":
        return "it computes for long, or waits for a service"
    if kind.split(".")[0] in _CLIENTS or kind in ("ConnectionError", "ConnectionRefusedError", "OSError"):
        return "it needs a service that doesn't answer here"
    if kind in ("ModuleNotFoundError", "ImportError"):
        return "it needs a package that isn't installed here"
    return (
        "it needs a variable of the environment"
        if kind == "KeyError" and re.search(r'os(\.py|>)", line', trace)
        else ""
    )


def _graph(recipe: Recipe | None, told: object) -> object:
    """The graph that a recipe makes for the job of this spec; None without either."""
    if not told or recipe is None or recipe.graph is None:
        return None
    from areal.dataflow.own import json_of_graph, own_graph
    from areal.spec.job import JobSpec

    spec = JobSpec.model_validate(told)
    there = {"compute_advantages": recipe.compute_advantages, "compute_loss": recipe.compute_loss}
    hooks = frozenset(name for name, hook in there.items() if hook or spec.trainer.hooks)  # that file may need torch
    return json_of_graph(own_graph(recipe.graph, spec, hooks))


# ---- Names that a recipe defines, found without running it
# User code is run by workers, the custom-reward pool and the trainer only; planning reads its top level as syntax.


def defines(recipe: Path, name: str) -> bool:
    """Whether the file binds `name` at its top level. Raises DataError when it is no Python."""
    refuse_pipes(recipe)
    try:
        source = recipe.read_bytes()
    except OSError as error:
        raise DataError(f"{recipe} can't be read: {error.strerror}", fix="Check recipe.file.") from error
    return defines_in(source, name, str(recipe))


def has_hooks(*files: Path | None) -> bool:
    """Whether one of a job's files replaces what the trainer computes, by a function that can be tried alone."""
    names = ("compute_advantages", "compute_loss")
    return any(defines(file, name) for file in files if file is not None for name in names)


def defines_in(source: str | bytes, name: str, shown: str) -> bool:
    """The same for the text of a recipe; `shown` is what people call it."""
    try:
        tree = ast.parse(source, filename=shown)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise DataError(f"{shown}{line}: the recipe is no valid Python: {error}", fix="Correct the recipe.") from None
    return name in set(_bound(tree.body))


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.split(".")[0] for alias in names)
            case ast.Assign(targets=targets):
                yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield name
            case ast.If(body=then, orelse=otherwise):
                yield from _bound(then)
                yield from _bound(otherwise)
            case ast.Try(body=tried, handlers=handlers, orelse=otherwise):
                yield from _bound([*tried, *otherwise])
                for handler in handlers:
                    yield from _bound(handler.body)
            case _:
                continue


if __name__ == "__main__":
    main()
