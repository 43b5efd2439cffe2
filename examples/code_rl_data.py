"""Makes the data of examples/code_rl.yaml: tiny programming tasks, each with tests that the sandbox runs.

    python examples/code_rl_data.py data/code

A task is two steps in words, its answer a Python function:

    add 4, mul 3:      def f(x):return (x+4)*3

A row for reinforcement learning has the task as `prompt`, and as `input_output` eight calls of `f` with the results
that they must have, the way APPS writes them; any program that gives these results is right. Rows of `sft.jsonl` and
`validation.jsonl` have a program as `answer` instead. Three of four programs of `sft.jsonl` are hasty: parentheses are
forgotten, a cap is taken for a floor. Who imitates them passes few tests; only running programs teaches better. No task
of the held-out file is in any other file. The files are the same on every machine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from random import Random

ROWS = {"train": 12_000, "sft": 16_000, "validation": 150, "heldout": 200}
HASTY = 0.75  # of the programs for supervised training
STEPS = 2  # of a task
BANDS = ((-40, 0), (0, 4), (4, 7), (7, 10), (10, 14), (14, 30), (30, 60), (60, 100))  # of the tests' arguments
SEED = 20_261_121

VERBS = ("add", "sub", "mul", "mod", "cap", "floor")
SIGNS = {"add": "+", "sub": "-", "mul": "*", "mod": "%"}
NUMBERS = range(2, 13)

Task = tuple[tuple[str, int], ...]


def words(task: Task) -> str:
    """What the model reads."""
    return ", ".join(f"{verb} {number}" for verb, number in task) + ":"


def program(task: Task, *, hasty: bool = False) -> str:
    """A right answer; a hasty one is right only where neither parentheses nor a bound matter."""
    expression, sum_or_product = "x", False
    for verb, number in task:
        if verb in SIGNS:
            inner = f"({expression})" if sum_or_product and not hasty else expression
            expression, sum_or_product = f"{inner}{SIGNS[verb]}{number}", True
        else:
            name = "min" if (verb == "cap") is not hasty else "max"
            expression, sum_or_product = f"{name}({expression},{number})", False
    return f"def f(x):return {expression}"


def result(task: Task, x: int) -> int:
    """What the answer's function must return."""
    for verb, number in task:
        match verb:
            case "add":
                x += number
            case "sub":
                x -= number
            case "mul":
                x *= number
            case "mod":
                x %= number
            case "cap":
                x = min(x, number)
            case "floor":
                x = max(x, number)
    return x


def draw(rng: Random) -> Task:
    """A task, by `rng.random()` alone, the one method whose values never change between Pythons."""
    while True:
        task = tuple(
            (VERBS[int(rng.random() * len(VERBS))], NUMBERS[int(rng.random() * len(NUMBERS))]) for _ in range(STEPS)
        )
        if len({result(task, x) for low, high in BANDS for x in (low, high)}) > 3:  # else its argument hardly matters
            return task


def tests(task: Task, rng: Random) -> dict[str, object]:
    """Eight calls with their results, one from each band: below, between and above the numbers of tasks."""
    inputs = [low + int(rng.random() * (high - low)) for low, high in BANDS]
    return {"fn_name": "f", "inputs": [[x] for x in inputs], "outputs": [result(task, x) for x in inputs]}


def main(out: Path) -> None:
    """Writes the four files; each appears whole or not at all."""
    rng = Random(SEED)
    out.mkdir(parents=True, exist_ok=True)
    held: dict[str, set[Task]] = {"heldout": set(), "validation": set()}
    for name in ("heldout", "validation", "train", "sft"):
        made: list[dict[str, object]] = []
        while len(made) < ROWS[name]:
            task = draw(rng)
            if any(task in tasks for tasks in held.values()):
                continue
            if name in held:
                held[name].add(task)
            if name in ("sft", "validation"):
                hasty = name == "sft" and rng.random() < HASTY
                made.append({"prompt": words(task), "answer": program(task, hasty=hasty)})
            else:
                made.append({"prompt": words(task), "input_output": tests(task, rng)})
        partial = out / f".{name}.jsonl.tmp-{os.getpid()}"
        partial.write_text("".join(json.dumps(row) + "\n" for row in made))
        partial.rename(out / f"{name}.jsonl")
        print(f"{out / name}.jsonl: {ROWS[name]} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/code_rl_data.py OUTPUT_DIRECTORY")
    main(Path(sys.argv[1]))
