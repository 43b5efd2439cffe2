"""The service under pressure: mathematics, and poison among it."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import orjson
from areal.reward.verifiers.math import MathVerifier
from areal.v1 import reward_pb2 as pb


def _item(answer: str, gold: str) -> pb.ScoreItem:
    return pb.ScoreItem(verifier="math", completion=answer, row_json=orjson.dumps({"answer": gold}))


def integers(count: int) -> list[pb.ScoreItem]:
    """What text decides."""
    return [_item(f"so it is \\boxed{{{n}}}", str(n)) for n in range(count)]


def mixed_pairs(count: int) -> list[pb.ScoreItem]:
    """What computer algebra decides: no pair is asked twice."""
    shapes = (
        (r"\boxed{{\frac{{{n}}}{{7}}}}", "{n}/7"),
        (r"\boxed{{(x+{n})^2}}", "x^2+2*{n}*x+{n}^2"),
        (r"\boxed{{{n}\sqrt{{2}}}}", r"\sqrt{{2}}*{n}"),
        (r"\boxed{{({n}, {n}+1)}}", "({n},{n}+1)"),
        (r"\boxed{{\sin({n}\pi/6)}}", r"\sin({n}\pi/6)"),
    )
    return [
        _item(answer.format(n=n + 2), gold.format(n=n + 2))
        for n, (answer, gold) in zip(range(count), itertools.cycle(shapes), strict=False)
    ]


def endless(count: int) -> list[pb.ScoreItem]:
    """Answers that computer algebra does not finish, and that no guard refuses by its looks."""
    return [_item(rf"\boxed{{\int_0^1 \sin(\cos(\tan(x^{n + 3}+e^x)))\,dx}}", r"\int_0^1 x\,dx") for n in range(count)]


async def scored(verifier: MathVerifier, items: list[pb.ScoreItem]) -> tuple[float, list[pb.ScoreResult]]:
    """Items a second in batches as workers send them, and the results."""
    began = time.perf_counter()
    results: list[pb.ScoreResult] = []
    for start in range(0, len(items), 64):
        results += await verifier.score(items[start : start + 64])
    return len(items) / (time.perf_counter() - began), results


@dataclass(frozen=True)
class Poisoned:
    """A hundred answers, ten of which never end."""

    right: int
    timeouts: int
    faults: int
    seconds: float


async def poisoned(verifier: MathVerifier) -> Poisoned:
    """Sends ten endless answers among ninety honest ones, all at once."""
    bad, good = endless(10), mixed_pairs(90)
    items: list[pb.ScoreItem] = []
    for number, one in enumerate(bad):
        items += [one, *good[number * 9 : number * 9 + 9]]
    began = time.perf_counter()
    results = await verifier.score(items)
    seconds = time.perf_counter() - began
    verdicts = [result.verdict.status if result.WhichOneof("outcome") == "verdict" else "FAULT" for result in results]
    return Poisoned(verdicts.count("EQUAL"), verdicts.count("TIMEOUT"), verdicts.count("FAULT"), seconds)
