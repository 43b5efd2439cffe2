"""Imports a recipe in a process of its own and says what it defines: user code never runs in the supervisor.

`python -m areal.admit.recipe_probe RECIPE SECONDS` prints one JSON line last, whatever the recipe itself prints. Its
input is JSON: the job's `spec`, with which a recipe's `graph(ctx)` is made, matched and tried, and `items`, real rows
with a right and a wrong answer, of which `reward` is asked. Only a graph loads what understands jobs: the process is in
every check's time.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.errors import ArealError, DataError, Kind, by_kind
from areal.workflow.recipe import Recipe, agents_of, load_recipe, needed_columns

if TYPE_CHECKING:
    from areal.dataflow.stages import Graph
    from areal.spec.job import JobSpec

_CPU_LIMIT_S = 60  # a recipe that needs more would time workers out, too; waiting for a busy machine doesn't count
_LIMIT_S = 600.0  # for one that sleeps, or waits for a network
SLOW_S = 10.0
_REWARD_S = 5.0  # for all items together; one that waits for a service is not looked at
_CLIENTS = ("aiohttp", "anthropic", "grpc", "httpcore", "httpx", "openai", "requests", "socket", "urllib", "urllib3")


@dataclass(frozen=True)
class RecipeParts:
    """What a recipe defines."""

    reward: bool
    workflows: frozenset[str]
    agents: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()  # columns that `reward` can't do without
    seconds: float = 0.0  # of processor time to import it
    graph: Graph | None = None  # of the step, with stages of its own
    unseen: str = ""  # why `reward` could not be asked


def probe_recipe(
    recipe: Path,
    cpu_limit_s: int = _CPU_LIMIT_S,
    *,
    spec: JobSpec | None = None,
    items: Sequence[Mapping[str, Any]] = (),
) -> RecipeParts:
    """Import `recipe` elsewhere, in at most `cpu_limit_s` of processor time; raises what is wrong with it.

    With the job's `spec` also what is wrong with its `graph(ctx)`; with `items`, as a reward service is given them,
    what is wrong with its `reward`.
    """
    told = json.dumps(
        {
            "spec": None if spec is None else spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "items": list(items),
        }
    )
    answer = _answer_of("areal.admit.recipe_probe", recipe, [str(recipe), str(cpu_limit_s)], told, cpu_limit_s)
    return RecipeParts(
        answer["reward"],
        frozenset(answer["workflows"]),
        frozenset(answer["agents"]),
        frozenset(answer["needs"]),
        float(answer["seconds"]),
        _graph_of(answer["graph"]),
        answer["unseen"],
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
        recipe = load_recipe(Path(sys.argv[1]))
        seconds = time.process_time() - began
        answer = {
            "kind": "",
            "reward": recipe.reward is not None,
            "workflows": sorted(recipe.workflows),
            "agents": sorted(agents_of(recipe.module)),
            "needs": sorted(needed_columns(recipe.reward)),
            "seconds": seconds,
            "graph": _graph(recipe, told.get("spec")),
            "unseen": _asked(recipe, told),
        }
    except ArealError as error:
        answer = {"kind": error.kind.value, "message": error.message, "fix": error.fix}
    print(f"\n{json.dumps(answer)}", flush=True)


def _asked(recipe: Recipe, told: Mapping[str, Any]) -> str:
    """Ask `reward` of the items. Raises DataError with the line where it fails or answers no finite number; answers
    why it could not be asked here, or nothing."""
    items = told.get("items")
    if recipe.reward is None or not items:
        return ""
    from areal.reward.scorers.recipe import judge_of

    def late(signum: int, frame: object) -> None:
        raise TimeoutError

    judge = judge_of(recipe.reward, ((told.get("spec") or {}).get("reward") or {}).get("weights"))
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _REWARD_S)
    try:
        for item in items:
            if needed_columns(recipe.reward) - item["row"].keys():
                continue  # the look at the rows says so
            place = item.pop("place")
            said = judge(item)
            if said[0] != "fault":
                continue
            _, message, fix, trace = said
            if why := _away(trace):
                return f"the recipe's reward: {why}"
            lines = re.findall(rf'File "{re.escape(str(recipe.path))}", line (\d+)', trace)
            where = f"{recipe.path}:{lines[-1]}: " if lines else f"{recipe.path}: "
            raise DataError(f"{where}{message} (for {place}, answer {item['completion']!r:.60})", fix=fix)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def _away(trace: str) -> str:
    """What a reward needs that isn't here, by its traceback; nothing where it fails of itself."""
    kind = trace.strip().splitlines()[-1].split(":")[0] if trace.strip() else ""
    if kind == "TimeoutError":
        return f"it took longer than {_REWARD_S:g} s, or waits for a service"
    if kind.split(".")[0] in _CLIENTS or kind in ("ConnectionError", "ConnectionRefusedError", "OSError"):
        return "it needs a service that doesn't answer here"
    if kind in ("ModuleNotFoundError", "ImportError"):
        return "it needs a package that isn't installed here"
    return (
        "it needs a variable of the environment"
        if kind == "KeyError" and re.search(r'os(\.py|>)", line', trace)
        else ""
    )


def _graph(recipe: Recipe, told: object) -> object:
    """The graph that a recipe makes for the job of this spec; None without either."""
    if not told or recipe.graph is None:
        return None
    from areal.dataflow.own import json_of_graph, own_graph
    from areal.spec.job import JobSpec

    spec = JobSpec.model_validate(told)
    there = {"compute_advantages": recipe.compute_advantages, "compute_loss": recipe.compute_loss}
    hooks = frozenset(name for name, hook in there.items() if hook or spec.trainer.hooks)  # that file may need torch
    return json_of_graph(own_graph(recipe.graph, spec, hooks))


if __name__ == "__main__":
    main()
