"""Scale by the model of `areal plan`: published figures beside it, and curves to 1,024 GPUs, into docs/scale.json.

    python bench/scale.py [--out docs/scale.json]

Nothing here is a measurement of this project: the constants are those of arXiv 2505.24298 (1.5B and 7B on H800), fitted
on its figure 5c, and what other figures and tables of it say stands beside what follows from them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from areal_view.why.scale import CARDS, CardSpeeds, Workload, best, by_turns, drawn, split

ROOT = Path(__file__).resolve().parents[1]
PAPER = Workload(512, 16, 27_648, 4, 16, False, 10**6)
SMALL, SEVEN = CARDS
WITHIN = 0.10
FIGURE_5C = {0: 128.7, 1: 269.3, 2: 356.6, 4: 356.6, 8: 371.7, 16: 382.4}  # thousand tokens/s by η, 96 + 32 GPUs
FIGURE_4 = {32: 1.0, 64: 1.89, 128: 3.44, 256: 4.99}  # throughput by GPUs, answers of 16k, η 4
SEEDS_ASYNC = {16: 100, 64: 380, 256: 1250, 1024: 3800}  # per cent, whose workload isn't told
SEEDS_SYNC = {16: 100, 64: 320, 256: 810}
GPUS = (16, 32, 64, 128, 256, 512, 1024)

Row = dict[str, Any]


def row(what: str, published: float, model: float, unit: str, why: str = "") -> Row:
    """One published figure; `why` it can't be had from the constants, where it is further off."""
    error = model / published - 1
    if abs(error) > WITHIN and not why:
        raise RuntimeError(f"{what}: {model:.4g} for {published:.4g} {unit}, and no reason is given")
    return {"what": what, "published": published, "model": model, "unit": unit, "error": error, "why": why}


def published() -> Iterator[Row]:
    for eta, figure in FIGURE_5C.items():
        told = split(drawn(SMALL, replace(PAPER, ahead=eta, staleness=4 * eta)), 96, 32)
        yield row(f"1.5B, 96 + 32 GPUs, η {eta} (figure 5c)", figure, told.tokens_per_s / 1e3, "k tokens/s")
    hours = "the published hours hold evaluations and checkpoints, which nothing tells apart from steps"
    for card, gpus, sync_h, async_h in ((SMALL, 128, 41.0, 14.8), (SEVEN, 192, 57.7, 25.4)):
        name = card.name.split("-")[1].upper()
        speeds = drawn(card, PAPER)
        turns, apart = by_turns(speeds, gpus), split(speeds, gpus * 3 // 4, gpus // 4)
        yield row(
            f"{name}, {gpus} GPUs, by turns ÷ asynchronous (table 1)",
            sync_h / async_h,
            turns.step_s / apart.step_s,
            "×",
        )
        for how, hour, told in (("by turns", sync_h, turns), ("asynchronous", async_h, apart)):
            yield row(f"{name}, {gpus} GPUs, {how} (table 1)", hour * 3600 / 250, told.step_s, "s/step", hours)
    base = split(drawn(SMALL, replace(PAPER, longest=16_384)), 24, 8).tokens_per_s
    small = "its trainer is less efficient with few tokens a GPU; nothing published says by how much"
    for gpus, figure in list(FIGURE_4.items())[1:]:
        told = split(drawn(SMALL, replace(PAPER, longest=16_384)), gpus * 3 // 4, gpus // 4).tokens_per_s
        yield row(f"1.5B, answers of 16k, 32 → {gpus} GPUs (figure 4)", figure, told / base, "×", small)
    lead = (
        "it passes where generation is 12 batches ahead (below); with 4 the longest answers bound a step of 512 groups"
    )
    for name, row_of, reasons in (
        ("asynchronous", SEEDS_ASYNC, {1024: lead}),
        (
            "synchronous",
            SEEDS_SYNC,
            dict.fromkeys((64, 256), "a step of 512 groups takes its longest answer, on however many GPUs"),
        ),
    ):
        speeds = drawn(SMALL, PAPER)
        rate = [(best if name == "asynchronous" else by_turns)(speeds, gpus).tokens_per_s for gpus in row_of]
        for gpus, one in list(zip(row_of, rate, strict=True))[1:]:
            told = 100 * one / rate[0]
            yield row(f"{name}, 16 → {gpus} GPUs (of unknown workload)", row_of[gpus], told, "%", reasons.get(gpus, ""))


def curve(card: CardSpeeds, name: str, ahead: int, sizes: tuple[int, ...], grows: bool = False) -> Row:
    rows = []
    for gpus in sizes:
        work = replace(PAPER, ahead=ahead, staleness=4 * ahead, batch=4 * gpus if grows else 512)
        speeds = drawn(card, work)
        rows.append({"gpus": gpus, "apart": asdict(best(speeds, gpus)), "by_turns": asdict(by_turns(speeds, gpus))})
        print(f"  {name}: {gpus}", flush=True)
    return {"name": name, "card": card.name, "ahead": ahead, "rows": rows}


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=ROOT / "docs" / "scale.json")
    out = made.parse_args().out
    rows = list(published())
    for one in rows:
        mark = "" if abs(one["error"]) <= WITHIN else f"   no: {one['why']}"
        figures = f"{one['published']:>9.4g}{one['model']:>9.4g} {one['unit']:<11}{one['error']:>+6.0%}"
        print(f"{one['what']:<58}{figures}{mark}")
    curves = [
        curve(SMALL, "512 groups, ahead 4", 4, GPUS),
        curve(SMALL, "512 groups, ahead 12", 12, GPUS),
        curve(SMALL, "4 groups a GPU, ahead 4", 4, GPUS[:5], grows=True),
        curve(SEVEN, "7B, 512 groups, ahead 4", 4, GPUS[:5]),
    ]
    kept = json.loads(out.read_text()) if out.exists() else {}
    result = {**kept, "work": asdict(PAPER), "published": rows, "curves": curves}
    lines = (
        json.dumps(result, ensure_ascii=False)
        .replace('{"what"', '\n{"what"')
        .replace('{"gpus"', '\n{"gpus"')
        .replace('{"name"', '\n{"name"')
    )
    out.write_text(lines + "\n")


if __name__ == "__main__":
    main()
