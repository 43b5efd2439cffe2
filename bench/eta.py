"""The η table: what the age of trained tokens costs, with the decoupled correction and without (naive), in lock-step.

Runs the variants of `areal study staleness` (η 0, 1, 2, 4, 8, 16 and unbounded, both losses, three seeds) on the
quickstart's task with ages that are exact: see `lockstep`. A smaller table takes steps so large that no loss copes.
Each run is kept in bench/results/eta, so that a second start goes on where the first was; `--write` puts tables,
picture and figures into docs/.

    python bench/eta.py [--jobs 1] [--fresh] [--write]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from areal.local.comparison import Series, line_picture
from areal.local.study import ETAS, staleness
from areal.values.interval import student_half
from lockstep import ROOT, Setting, play, told

RUNS = ROOT / "bench" / "results" / "eta"
SEEDS = (1, 2, 3)  # 0 was for finding the settings
NAIVE, DECOUPLED = "naive", "decoupled"
MOVED = ("lag", "lag_kl", "step", "step_kl", "total", "total_kl", "cut", "effective")
SHOWN = (0, 8, 16, None)  # η in the table of what updates did
SAME = ("held_out", "area", "age_mean")  # of the naive and the decoupled run of one seed at η 0
TASK = ("algorithm.batchSize=16", "algorithm.miniBatches=4", "optimizer.lrSchedule=constant")


@dataclass(frozen=True)
class Study:
    """A table: its η, its losses by name, and what all of its runs set."""

    name: str
    etas: tuple[int | None, ...]
    losses: Mapping[str, tuple[str, ...]]
    overrides: tuple[str, ...]
    steps: int

    def settings(self, seeds: Sequence[int], base: Setting) -> Iterator[Setting]:
        """Its runs, seed by seed. At η 0 losses are one program: the first seed shows it, the others run one."""
        for seed in seeds:
            for eta in self.etas:
                for loss, own in self.losses.items():
                    if eta == 0 and loss != DECOUPLED and (loss != NAIVE or seed != seeds[0]):
                        continue
                    bound = self.steps if eta is None else eta
                    fields = (*TASK, *self.overrides, f"algorithm.maxStaleness={bound}", *own)
                    yield replace(base, eta=eta, loss=loss, seed=seed, overrides=fields, steps=self.steps)


def losses_of_the_study() -> dict[str, tuple[str, ...]]:
    """Naive and decoupled as `areal study staleness` has them."""
    found: dict[str, tuple[str, ...]] = {}
    for variant in staleness(1).variants:
        bound, *own = variant.overrides
        assert bound.startswith("algorithm.maxStaleness=")
        found[variant.name.rpartition("_")[2]] = tuple(own)
    return found


LOSSES = losses_of_the_study()
STRICT = {"decoupled, rejection 2": (*LOSSES[DECOUPLED], "algorithm.advanced.rejection={upper: 2}")}
SLOW, FAST = "optimizer.learningRate=2e-5", "optimizer.learningRate=2e-4"
SMALL = Study("small", (*ETAS, None), LOSSES, ("algorithm.clipLow=0.05", SLOW), 48)
LARGE = Study("large", (0, 8), LOSSES | STRICT, ("algorithm.batchSize=32", "algorithm.clipLow=0.2", FAST), 24)
STUDIES = (SMALL, LARGE)
LABELS = {"small": "clip 0.05, rate 2e-5", "large": "clip 0.2, rate 2e-4"}


def run_all(studies: Sequence[Study], seeds: Sequence[int], base: Setting, runs: Path, jobs: int) -> None:
    """Run what isn't there, in spawned processes: one that has computed with torch can't be forked."""
    wanted = [(file_of(runs, study, one), one) for study in studies for one in study.settings(seeds, base)]
    missing = [(file, one) for file, one in wanted if not is_of(file, one)]
    steps = sum(one.steps for _, one in missing)
    print(f"{len(wanted)} runs, {len(wanted) - len(missing)} are there, {steps:,} steps to go", flush=True)
    context, began = multiprocessing.get_context("spawn"), time.monotonic()
    with ProcessPoolExecutor(jobs, context) as pool:
        files = {pool.submit(play, one): file for file, one in missing}
        for done, future in enumerate(as_completed(files), 1):
            found, file = future.result(), files[future]
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(found) + "\n", encoding="utf-8")
            partial.rename(file)
            left = (time.monotonic() - began) / done * (len(missing) - done)
            print(
                f"{done:>3} of {len(missing)}  {file.parent.name} {found['name']}: held out {found['last']:.3f}, "
                f"area {found['area']:.3f}, age {found['age_mean']:.2f}, at most {found['age_max']}; "
                f"{found['seconds']:.0f} s, {left / 60:.0f} min left", flush=True,
            )  # fmt: skip


def file_of(runs: Path, study: Study, setting: Setting) -> Path:
    """Where a run's result is kept."""
    return runs / study.name / f"{setting.name.replace(', ', '-').replace(' ', '-')}.json"


def is_of(file: Path, setting: Setting) -> bool:
    """Whether a result is there, of this very setting."""
    return file.is_file() and json.loads(file.read_text(encoding="utf-8"))["setting"] == json.loads(
        json.dumps(told(setting))
    )


def read(runs: Path, studies: Sequence[Study], seeds: Sequence[int], base: Setting) -> list[dict[str, Any]]:
    """All results, each with the name of its table. Raises ValueError where the two losses differ at η 0."""
    found = []
    for study in studies:
        of = [json.loads(file_of(runs, study, one).read_text("utf-8")) for one in study.settings(seeds, base)]
        check_fresh(of)
        found += [{"study": study.name, **one} for one in of]
    return found


def check_fresh(results: Iterable[Mapping[str, Any]]) -> None:
    """At η 0 the naive loss is the decoupled one: to the last digit. Raises ValueError where it isn't."""
    fresh = [one for one in results if one["eta"] == 0]
    pairs = [(one, other) for one in fresh for other in fresh if (one["loss"], other["loss"]) == (NAIVE, DECOUPLED)]
    pairs = [(one, other) for one, other in pairs if one["seed"] == other["seed"]]
    if not pairs:
        raise ValueError("no run shows that the two losses are one at η 0")
    for one, other in pairs:
        norms = [[step["grad_norm"] for step in each["steps"]] for each in (one, other)]
        if norms[0] != norms[1] or any(one[name] != other[name] for name in SAME):
            raise ValueError(f"at η 0 the losses differ: {one['held_out']} and {other['held_out']}")


def cells(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row of each table, η and loss: means over seeds with half their 95 % interval, and what its updates did.

    The losses of η 0 are one program, so its decoupled runs are also the naive ones. What updates did is over
    the last two thirds of the steps, where every η has its full age.
    """
    made = []
    for study, eta, loss in dict.fromkeys((one["study"], one["eta"], one["loss"]) for one in results):
        as_loss = DECOUPLED if eta == 0 else loss
        of = [one for one in results if (one["study"], one["eta"], one["loss"]) == (study, eta, as_loss)]
        moved = [probe for one in of for probe in one["moved"][-(-_late(one) // one["setting"]["probe_every"]) :]]
        late = [step for one in of for step in one["steps"][_late(one) :]]
        row: dict[str, Any] = {"study": study, "eta": eta, "loss": loss, "seeds": [one["seed"] for one in of]}
        for name in ("last", "area"):
            values = [one[name] for one in of]
            row[name] = {"mean": fmean(values), "half95": student_half(values), "values": values}
        row |= {
            "age_mean": fmean(one["age_mean"] for one in of), "age_max": max(one["age_max"] for one in of),
            **{name: fmean(probe[name] for probe in moved) for name in MOVED},
            **{name: fmean(step[name] for step in late) for name in ("clip", "rejected", "entropy")},
        }  # fmt: skip
        made.append(row)
    return made


def _late(result: Mapping[str, Any]) -> int:
    return len(result["steps"]) // 3


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Held-out accuracy over η, and by how much a seed's decoupled run is above its naive one.

    Rows of several tables say whose they are.
    """
    losses = [loss for loss in (NAIVE, DECOUPLED, *STRICT) if any(row["loss"] == loss for row in rows)]
    several = len({row["study"] for row in rows}) > 1
    head = [*(["settings"] if several else []), "η", "age, mean", "at most"]
    head += [f"{loss}: {what}" for loss in losses for what in ("area", "end")] + ["decoupled − naive: area"]
    lines = [head, ["---"] * len(head)]
    for study, eta in dict.fromkeys((row["study"], row["eta"]) for row in rows):
        of = {row["loss"]: row for row in rows if (row["study"], row["eta"]) == (study, eta)}
        begin = [*([LABELS[study]] if several else []), _eta(eta)]
        age, scores = of[DECOUPLED], list[str]()
        for loss in losses:
            found = of.get(loss)
            scores += ["—"] * 2 if found is None else [_interval(found[what]) for what in ("area", "last")]
        pairs = zip(of[DECOUPLED]["area"]["values"], of[NAIVE]["area"]["values"], strict=True)
        apart = [more - less for more, less in pairs]
        spread = student_half(apart)
        gained = "0, one program" if eta == 0 else f"{fmean(apart):+.3f}" + (f" ± {spread:.3f}" if spread else "")
        lines.append([*begin, f"{age['age_mean']:.1f}", str(age["age_max"]), *scores, gained])
    return _markdown(lines)


def moves(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the updates did, by table, η and loss."""
    head = [
        "settings",
        "η",
        "loss",
        "lag",
        "update",
        "both",
        "clipped tokens",
        "cut by a naive clip",
        "effective tokens",
    ]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        if row["eta"] != 0 or row["loss"] == DECOUPLED:
            lengths = (f"{row[name]:.3f}" for name in ("lag", "step", "total"))
            shares = (f"{row[name]:.0%}" for name in ("cut", "effective"))
            loss = "both" if row["eta"] == 0 else row["loss"]
            lines.append([LABELS[row["study"]], _eta(row["eta"]), loss, *lengths, f"{row['clip']:.1%}", *shares])
    return _markdown(lines)


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """The area under the held-out curve over η as an SVG file, with its intervals."""
    etas, lines = list(dict.fromkeys(row["eta"] for row in rows)), []
    for loss in (DECOUPLED, NAIVE):
        of = [(etas.index(row["eta"]), row["area"]) for row in rows if row["loss"] == loss]
        lines.append(Series(loss, [(place, one["mean"]) for place, one in of], dots=True))
        for sign, edge in ((-1, "low"), (1, "high")):
            band = [(place, one["mean"] + sign * one["half95"]) for place, one in of if one["half95"] is not None]
            lines.append(Series(f"{loss}, 95 % {edge}", band, faint=True))
    names = f"η: {', '.join('∞' if eta is None else str(eta) for eta in etas)}"
    return line_picture([line for line in lines if line.points], names, "held-out accuracy, mean of the run")


def page(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with these rows' tables between its marks. Raises ValueError where a mark is missing."""
    small = [row for row in rows if row["study"] == "small"]
    others = [row for row in rows if row["study"] != "small"]
    shown = [row for row in rows if row["eta"] in SHOWN]
    for mark, made in (("small", table(small)), ("others", table(others)), ("moves", moves(shown))):
        begin, end = f"<!-- eta: {mark} -->\n", "<!-- eta: end -->"
        head, found, rest = text.partition(begin)
        if not found:
            raise ValueError(f"the page has no {begin.strip()}")
        text = head + begin + made + end + rest.partition(end)[2]
    return text


def _interval(value: Mapping[str, Any]) -> str:
    half = value["half95"]
    return f"{value['mean']:.3f}" + ("" if half is None else f" ± {half:.3f}")


def _eta(eta: int | None) -> str:
    return "unbounded" if eta is None else str(eta)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where results are kept")
    parser.add_argument("--fresh", action="store_true", help="run everything again")
    parser.add_argument("--write", action="store_true", help="write tables, picture and figures into docs/")
    parser.add_argument("--steps", type=int, help="of each run, instead of the table's")
    given = parser.parse_args()
    if given.fresh:
        shutil.rmtree(given.runs, ignore_errors=True)
    studies = [replace(one, steps=given.steps or one.steps) for one in STUDIES]
    base = Setting(0, "", 0)
    run_all(studies, SEEDS, base, given.runs, given.jobs)
    results = read(given.runs, studies, SEEDS, base)
    rows = cells(results)
    for study in studies:
        of = [row for row in rows if row["study"] == study.name]
        print(f"\n{study.name}: {', '.join((*TASK, *study.overrides))}\n{table(of)}\n{moves(of)}")
    if given.write:
        docs = ROOT / "docs"
        (docs / "eta.json").write_text(figures(studies, rows, results), encoding="utf-8")
        rows = json.loads((docs / "eta.json").read_text("utf-8"))["cells"]
        (docs / "img/eta.svg").write_text(picture([row for row in rows if row["study"] == "small"]), encoding="utf-8")
        (docs / "asynchrony.md").write_text(page((docs / "asynchrony.md").read_text("utf-8"), rows), encoding="utf-8")


def figures(studies: Sequence[Study], rows: Sequence[Any], results: Sequence[Mapping[str, Any]]) -> str:
    """What docs/eta.json says: settings, a line for each cell, a line for each run."""
    settings = {one.name: {"steps": one.steps, "overrides": [*TASK, *one.overrides]} for one in studies}
    kept = ("study", "name", "seed", "held_out", "area", "age_mean", "age_max", "mismatch_max", "seconds")
    runs = [{name: one[name] for name in kept} for one in results]
    parts = [f' "settings": {json.dumps(settings)}']
    for name, found in (("cells", rows), ("runs", runs)):
        lines = ",\n".join(f"  {json.dumps(_rounded(one))}" for one in found)
        parts.append(f' "{name}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rounded(value: Any) -> Any:
    """Floats by six digits behind the point: what a table shows has three."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main()
