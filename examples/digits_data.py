"""Makes the data of the quickstart: sort the digits of a string of 3 to 6 digits.

    python examples/digits_data.py data/digits

A row is `{"prompt": "3142=", "answer": "1234"}`. Four files: `train.jsonl` for reinforcement learning,
`heldout.jsonl` to measure it, `sft.jsonl` and `validation.jsonl` for the short supervised phase before. No multiset of
digits in the held-out file is in any other file, nor one of the validation file in `sft.jsonl`, so a model that
remembers answers gains nothing. The files are the same on every machine.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random

LENGTHS = (3, 4, 5, 6)
ROWS = {"train": 20_000, "sft": 12_000, "validation": 500, "heldout": 500}
HELD_OUT_SHARE = 0.10  # of the multisets of each length
VALIDATION_SHARE = 0.05
SEED = 20_240_503


def shuffled(items: list[str], rng: Random) -> list[str]:
    """A random order made from `rng.random()` alone, the one method whose values never change between Pythons."""
    return [item for _, item in sorted((rng.random(), item) for item in items)]


def split_multisets(rng: Random) -> dict[str, dict[int, list[str]]]:
    """For each split and length the sorted strings (one a multiset of digits) that the split may use."""
    splits: dict[str, dict[int, list[str]]] = {"heldout": {}, "validation": {}, "train": {}}
    for length in LENGTHS:
        answers = shuffled(["".join(digits) for digits in combinations_with_replacement("0123456789", length)], rng)
        held, checked = (max(8, round(len(answers) * share)) for share in (HELD_OUT_SHARE, VALIDATION_SHARE))
        splits["heldout"][length] = answers[:held]
        splits["validation"][length] = answers[held : held + checked]
        splits["train"][length] = answers[held + checked :]
    splits["sft"] = splits["train"]
    return splits


def rows(answers: dict[int, list[str]], count: int, rng: Random, *, distinct: bool) -> list[dict[str, str]]:
    """`count` rows with lengths and multisets drawn evenly; `distinct` draws no question twice."""
    made: list[dict[str, str]] = []
    seen: set[str] = set()
    while len(made) < count:
        of_length = answers[LENGTHS[int(rng.random() * len(LENGTHS))]]
        answer = of_length[int(rng.random() * len(of_length))]
        question = "".join(shuffled(list(answer), rng))
        if distinct and question in seen:
            continue
        seen.add(question)
        made.append({"prompt": f"{question}=", "answer": answer})
    return made


def main(out: Path) -> None:
    """Writes the four files; each appears whole or not at all."""
    rng = Random(SEED)
    splits = split_multisets(rng)
    out.mkdir(parents=True, exist_ok=True)
    for name, count in ROWS.items():
        made = rows(splits[name], count, rng, distinct=name in ("heldout", "validation"))
        partial = out / f".{name}.jsonl.tmp-{os.getpid()}"
        partial.write_text("".join(json.dumps(row) + "\n" for row in made))
        partial.rename(out / f"{name}.jsonl")
        print(f"{out / name}.jsonl: {count} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/digits_data.py OUTPUT_DIRECTORY")
    main(Path(sys.argv[1]))
