"""A study: variants of a job with several seeds each, ranked with intervals, and drawn over what varied.

Owns the presets, what a study will cost, when a variant is given up, and the statistics over seeds. The runs
themselves, their directories and what a second start does are the sweep's.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean

from rich.console import Console
from rich.table import Table

from areal.errors import ConfigError, ExitCode
from areal.local.comparison import Series, line_picture, read_run
from areal.local.run import run_job
from areal.local.staging import StagingRequest, load
from areal.local.sweep import Variant, run_sweep, variants
from areal.local.view import duration
from areal.values.interval import student_half

ETAS = (0, 1, 2, 4, 8, 16)
_ALLOWED = "research.allowStale=true"
_NAIVE, _DECOUPLED = "naive", "decoupled"
_UNBOUNDED, _STEPS = "unbounded", "{maxSteps}"
_LARGEST = 1000  # η that a job may have
_HEAD = ("variant", "held-out", "95 %", "seeds", "time of a run")


@dataclass(frozen=True)
class StudyPlan:
    """What is to be run: the variants without their seeds, how many seeds, and what all of them set."""

    variants: tuple[Variant, ...]
    seeds: int
    overrides: tuple[str, ...] = ()
    halving: bool = False

    @property
    def runs(self) -> int:
        return len(self.variants) * self.seeds

    def of_length(self, steps: int) -> "StudyPlan":
        """With the steps of a run in the place of their name."""
        known = str(min(steps, _LARGEST))
        told = (tuple(text.replace(_STEPS, known) for text in one.overrides) for one in self.variants)
        made = (Variant(one.name, overrides) for one, overrides in zip(self.variants, told, strict=True))
        return replace(self, variants=tuple(made))

    def seeded(self, chosen: Iterable[Variant] | None = None) -> list[Variant]:
        """Each variant with each seed."""
        return [
            Variant(f"{one.name}_seed-{seed}", (*one.overrides, f"seed={seed}"))
            for one in (self.variants if chosen is None else chosen)
            for seed in range(self.seeds)
        ]


@dataclass(frozen=True)
class StudyRow:
    """One variant over its seeds: last held-out score, its mean and half its 95 % interval (None of one seed)."""

    name: str
    scores: tuple[float, ...]
    seconds: float  # of the wall, mean of a run

    @property
    def mean(self) -> float:
        return fmean(self.scores) if self.scores else math.nan

    @property
    def half(self) -> float | None:
        """Half the 95 % interval of the mean, by Student's t."""
        return student_half(self.scores)


def staleness(seeds: int, etas: Sequence[int] = ETAS) -> StudyPlan:
    """The paper's ablation: η and unbounded, each with the decoupled correction and without (arXiv 2505.24298 §7.4).

    Unbounded is the number of the run's steps: no token can be older.
    """
    bounds = [*((str(eta), str(eta)) for eta in etas), (_UNBOUNDED, _STEPS)]
    chosen = [
        Variant(f"eta-{name}_{kind}", (f"algorithm.maxStaleness={eta}", f"algorithm.advanced.decoupled={value}"))
        for name, eta in bounds
        for kind, value in ((_NAIVE, "false"), (_DECOUPLED, "true"))
    ]
    return StudyPlan(tuple(chosen), seeds, (_ALLOWED,))


def grid(sweeps: Sequence[str], seeds: int, *, draw: int = 0, halving: bool = False) -> StudyPlan:
    """Every combination of `field=a,b,c`, or `draw` of them at random, the same ones each time."""
    found = variants(sweeps)
    if draw and draw < len(found):
        found = sorted(Random(0).sample(found, draw), key=lambda one: one.name)
    return StudyPlan(tuple(found), seeds, halving=halving)


def run_study(
    request: StagingRequest,
    plan: StudyPlan,
    console: Console,
    run: Callable[[StagingRequest, Console], int] = run_job,
    *,
    as_json: bool = False,
) -> int:
    """Run what isn't complete, and write `study.md`, `.json` and `.svg`; returns the first exit code that isn't 0.

    `as_json`: print the ranking of `study.json` on standard output, too.
    """
    request = replace(request, overrides=(*request.overrides, *plan.overrides))
    job = load(replace(request, overrides=(*request.overrides, *plan.variants[0].overrides)))
    if not job.spec.is_rl:
        raise ConfigError(
            f"a study is of RL jobs, and this is a training of {job.spec.training}",
            fix="run its variants by `areal run JOB.yaml --sweep FIELD=A,B,C --seeds N`",
        )
    directory = (request.run_dir or Path("runs") / f"{job.metadata.name}-study").absolute()
    request = replace(request, run_dir=directory)
    steps = job.spec.algorithm.max_steps
    plan = plan.of_length(steps)
    console.print(_cost(plan, steps, Path("runs") / job.metadata.name), highlight=False, markup=False)
    kept = list(plan.variants)
    code = int(ExitCode.DONE)
    for until, keep in _rounds(steps, len(kept), plan.halving):
        asked = replace(request, overrides=(*request.overrides, f"algorithm.maxSteps={until}"))
        if (ended := run_sweep(asked, plan.seeded(kept), console, run)) == ExitCode.DRAINED:
            return ended
        code = code or ended  # a variant that failed in an early round
        ranked = rows(directory, plan, kept, until)
        kept = [one for row in ranked[:keep] for one in kept if one.name == row.name]
        request = replace(request, resume=True, fresh=False)
    found = rows(directory, plan, plan.variants)
    write_study(directory, found, job.metadata.name)
    table = Table(*_HEAD, box=None, pad_edge=False)
    for row in found:
        table.add_row(*_cells(row))
    console.print(table)
    if as_json:
        print((directory / "study.json").read_text(encoding="utf-8"), end="")
    console.print(f"wrote {directory / 'study.svg'}, .md and .json", highlight=False, markup=False, soft_wrap=True)
    return code


def rows(directory: Path, plan: StudyPlan, chosen: Iterable[Variant], until: int | None = None) -> list[StudyRow]:
    """What came of each variant, the best mean first; a variant without a score is last.

    `until`: by the scores of that step, so that a study that is resumed drops those that it dropped before.
    """
    found = []
    for one in chosen:
        ended = [read_run(directory / seeded.name) for seeded in plan.seeded([one])]
        held = [[each.mean for each in run.held_out if until is None or each.version <= until] for run in ended]
        scores = tuple(each[-1] for each in held if each)
        seconds = [run.seconds for run in ended if run.seconds]
        found.append(StudyRow(one.name, scores, fmean(seconds) if seconds else 0.0))
    return sorted(found, key=lambda row: (not row.scores, -row.mean if row.scores else 0.0))


def write_study(directory: Path, found: Sequence[StudyRow], title: str) -> None:
    """`study.md`, `study.json`, and `study.svg`: over η with bands where η varied, else the ranking."""
    lines = [_HEAD, ("---",) * len(_HEAD), *(_cells(row) for row in found)]
    (directory / "study.md").write_text("".join("| " + " | ".join(line) + " |\n" for line in lines), encoding="utf-8")
    told = [
        {"name": row.name, "scores": row.scores, "mean": row.mean if row.scores else None, "half95": row.half}
        for row in found
    ]
    (directory / "study.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (directory / "study.svg").write_text(_picture(found, title), encoding="utf-8")


def _rounds(steps: int, variants: int, halving: bool) -> list[tuple[int, int]]:
    """(steps, variants that go on after them) of each round: by successive halving, or all at once."""
    if not halving:
        return [(steps, variants)]
    count = max(1, math.ceil(math.log2(variants)) + 1)
    ends = [max(1, math.ceil(steps / 2 ** (count - 1 - place))) for place in range(count)]
    return [(end, math.ceil(variants / 2 ** (place + 1))) for place, end in enumerate(ends)]


def _cost(plan: StudyPlan, steps: int, earlier: Path) -> str:
    """What is to come, by a run of this job that is there."""
    taken = [
        (until - before) * (math.ceil(len(plan.variants) / 2**place) if plan.halving else len(plan.variants))
        for place, (before, until) in enumerate(
            pairwise((0, *(until for until, _ in _rounds(steps, len(plan.variants), plan.halving))))
        )
    ]
    total = sum(taken) * plan.seeds
    said = f"{plan.runs} runs ({len(plan.variants)} variants, {plan.seeds} seeds), {total:,} steps in all"
    known = read_run(earlier)
    if known.steps and known.seconds:
        return f"{said}: about {duration(known.seconds / known.steps * total)}, by {earlier}"
    return f"{said}; how long is known after the first: no run in {earlier} tells"


def _cells(row: StudyRow) -> tuple[str, ...]:
    mean = f"{row.mean:.3f}" if row.scores else "—"
    half = "—" if row.half is None else f"± {row.half:.3f}"
    return row.name, mean, half, str(len(row.scores)), duration(row.seconds) if row.seconds else "—"


def _picture(found: Sequence[StudyRow], title: str) -> str:
    by_eta = {name: row for row in found if row.scores and (name := _eta_of(row.name)) is not None}
    if not by_eta:
        lines = [Series(row.name, [(place, score) for score in row.scores], dots=True)
                 for place, row in enumerate(found, 1) if row.scores]  # fmt: skip
        return line_picture(lines, "rank", title)
    etas = sorted({eta for eta, _ in by_eta})
    lines = []
    for kind in (_DECOUPLED, _NAIVE):
        here = [(place, by_eta[eta, kind]) for place, eta in enumerate(etas) if (eta, kind) in by_eta]
        lines.append(Series(kind, [(place, row.mean) for place, row in here], dots=True))
        for sign, edge in ((-1, "low"), (1, "high")):
            band = [(place, row.mean + sign * row.half) for place, row in here if row.half is not None]
            lines.append(Series(f"{kind}, 95 % {edge}", band, faint=True))
    names = ", ".join("∞" if math.isinf(eta) else str(eta) for eta in etas)
    return line_picture([line for line in lines if line.points], f"η: {names}", title)


def _eta_of(name: str) -> tuple[float, str] | None:
    """η and the correction of one of the ablation's variants."""
    eta, _, kind = name.removeprefix("eta-").partition("_")
    if not name.startswith("eta-") or kind not in (_NAIVE, _DECOUPLED):
        return None
    return (math.inf if eta == _UNBOUNDED else int(eta), kind) if eta.isdigit() or eta == _UNBOUNDED else None


def etas_of(text: str) -> tuple[int, ...]:
    """Numbers between commas. Raises ConfigError."""
    try:
        found = tuple(sorted({int(one) for one in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--eta {text} names no numbers", fix="write --eta 0,2,8") from None
    if not found or min(found) < 0 or max(found) >= 1000:
        raise ConfigError(f"--eta {text} is beyond 0…999", fix="write --eta 0,2,8; unbounded is always among them")
    return found
