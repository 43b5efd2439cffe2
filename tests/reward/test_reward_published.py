"""Real expected answers and real graded answers of public sets: which can be used, and whether the grades agree.

`published/` has the expected answers of eight test splits (QwenLM/Qwen2.5-Math a45202b, MIT) and the ends of 800
answers with their published grades.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from areal.admit.answers import read_golds
from areal.reward.scorer_pool.pool import PoolSize
from areal.reward.verifiers.math import MathVerifier

pytest.importorskip("math_verify")
pytestmark = [pytest.mark.component, pytest.mark.nightly, pytest.mark.timeout(900)]

DATA = Path(__file__).with_name("published")
NO_MATHEMATICS = ("prose", "series", "empty")
KNOWN = {25, 45, 48, 72}  # three whose end is cut off before their answer; 10{,}000 for 10000, which is right


def rows(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rb") as file:
        yield from map(orjson.loads, file)


def test_all_but_few_expected_answers_that_are_mathematics_can_be_used() -> None:
    golds = list(rows("golds"))
    placed = ((f"{row['set']}:{row['row']}", row) for row in golds)
    found = read_golds(placed, "gold", budget_s=800.0)
    assert found.count.left == 0
    uses = Counter(row["gold"] for row in golds)
    kinds: Counter[str] = Counter()
    for gold, bad in found.bad.items():
        kinds[bad.kind] += uses[gold]
    aside = sum(kinds[kind] for kind in NO_MATHEMATICS)
    assert (kinds.total() - aside) / (len(golds) - aside) <= 0.005, kinds
    assert aside <= 110, kinds


async def test_grades_agree_with_the_published_ones(item) -> None:
    answers = list(rows("answers"))
    verifier = MathVerifier("answer", check_s=10.0, size=PoolSize(least=2, most=2))
    try:
        results = await verifier.score([item(row["tail"], "math", answer=row["gold"]) for row in answers])
    finally:
        await verifier.stop()
    graded = zip(answers, results, strict=True)
    other = [row["idx"] for row, result in graded if bool(result.verdict.score) != row["published"]]
    assert len(answers) == 800
    assert len(other) <= 4
    assert set(other) <= KNOWN
