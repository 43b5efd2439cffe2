"""Makes pairs of answers for DPO and reward models from the quickstart's data: sorted digits, and a slip of them.

    python examples/digits_pairs.py data/digits/train.jsonl data/digits/pairs.jsonl
    python examples/digits_pairs.py data/digits/heldout.jsonl data/digits/heldout-pairs.jsonl

A row is `{"prompt": "3142=", "chosen": "1234", "rejected": "1243"}`. A slip is one of those that a model makes: two
digits are swapped, one is another one, missing, or there twice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

ROWS = 4_000


def slip(answer: str, rng: Random) -> str:
    """`answer` with one mistake."""
    place = rng.randrange(len(answer))
    before, digit, after = answer[:place], answer[place], answer[place + 1 :]
    made = rng.choice(
        [
            f"{before}{after[:1]}{digit}{after[1:]}",
            f"{before}{rng.randrange(10)}{after}",
            f"{before}{after}",
            f"{before}{digit}{digit}{after}",
        ]
    )
    return made if made != answer else slip(answer, rng)


def main(source: Path, out: Path) -> None:
    """Writes the file whole or not at all."""
    rng = Random(0)
    made = []
    with source.open() as lines:
        for _, line in zip(range(ROWS), lines, strict=False):
            row = json.loads(line)
            made.append({"prompt": row["prompt"], "chosen": row["answer"], "rejected": slip(row["answer"], rng)})
    partial = out.with_name(f".{out.name}.tmp")
    partial.write_text("".join(json.dumps(row) + "\n" for row in made))
    partial.rename(out)
    print(f"{out}: {len(made)} pairs")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/digits_pairs.py TRAIN_JSONL OUTPUT_JSONL")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
