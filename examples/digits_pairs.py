"""Makes pairs of answers for DPO from the quickstart's data: the sorted digits are chosen, a slip of them rejected.

    python examples/digits_pairs.py data/digits/train.jsonl data/digits/pairs.jsonl

A row is `{"prompt": "3142=", "chosen": "1234", "rejected": "1243"}`: two neighbours of the answer are swapped, or a
digit is repeated where all are the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

ROWS = 4_000


def slip(answer: str, rng: Random) -> str:
    """`answer` with one mistake."""
    places = [place for place in range(len(answer) - 1) if answer[place] != answer[place + 1]]
    if not places:
        return answer + answer[-1]
    place = places[int(rng.random() * len(places))]
    return answer[:place] + answer[place + 1] + answer[place] + answer[place + 2 :]


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
