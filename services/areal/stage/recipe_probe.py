"""Imports a recipe in a process of its own and says what it defines: user code never runs in the supervisor.

`python -m areal.stage.recipe_probe RECIPE` prints one JSON line last, whatever the recipe itself prints.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from areal.errors import ArealError, DataError, Kind, by_kind

_LIMIT_S = 60.0  # a recipe that imports slower than this would time workers out, too


@dataclass(frozen=True)
class RecipeParts:
    """What a recipe defines."""

    reward: bool
    workflows: frozenset[str]


def probe(recipe: Path) -> RecipeParts:
    """Import `recipe` elsewhere; raises what is wrong with it."""
    command = [sys.executable, "-m", "areal.stage.recipe_probe", str(recipe)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"{recipe} takes longer than {_LIMIT_S:g} s to import", fix="do slow work inside functions, not at import"
        ) from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        kind = answer["kind"]
    except (IndexError, ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise DataError(
            f"{recipe} ends the process that imports it (exit {done.returncode}): {last}",
            fix="a recipe must import without exiting",
        ) from None
    if kind:
        raise by_kind(Kind(kind), answer["message"], fix=answer["fix"])
    return RecipeParts(answer["reward"], frozenset(answer["workflows"]))


def main() -> None:
    """In the probing process."""
    from areal.workflow.recipe import load_recipe

    try:
        recipe = load_recipe(Path(sys.argv[1]))
        answer = {"kind": "", "reward": recipe.reward is not None, "workflows": sorted(recipe.workflows)}
    except ArealError as error:
        answer = {"kind": error.kind.value, "message": error.message, "fix": error.fix}
    print(f"\n{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
