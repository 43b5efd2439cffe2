"""Parameter sweep: variants of a job, one run after the other, and their comparison.

Owns the variants' names, their directories below one sweep directory, and what a second start does: a variant that
completed is left alone, one that began goes on, the others start. Everything is checked before the first run.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from areal.errors import ArealError, ConfigError, ExitCode
from areal.local.comparison import HEAD, ComparedRun, read_run, write_sweep
from areal.local.kept import is_occupied, set_aside
from areal.local.run import run_job
from areal.local.staging import StagingRequest, load
from areal.plan import ResolvedJob, RunLayout
from areal.record import summary
from areal.spec import RLJob

_MOST = 100  # variants: more is a typing error, or wants a cluster
_OPENING, _CLOSING = "[{(", "]})"


@dataclass(frozen=True)
class Variant:
    """One run of a sweep: its name, which is its directory's, and what it sets."""

    name: str
    overrides: tuple[str, ...]


def variants(sweeps: Sequence[str], seeds: Sequence[int] = ()) -> list[Variant]:
    """Every combination of the values of `field=a,b,c`, each with every seed.

    Raises ConfigError for a sweep without values and for more runs than a person would mean.
    """
    choices: list[list[tuple[str, str]]] = []
    for text in sweeps:
        field, equals, raw = text.partition("=")
        values = split(raw)
        if not equals or not field.strip() or not all(values):
            raise ConfigError(
                f"--sweep {text} names no values", fix="write field=a,b,c, for example optimizer.learningRate=1e-5,1e-4"
            )
        short = field.strip().rpartition(".")[2]
        choices.append([(f"{short}-{value}", f"{field.strip()}={value}") for value in values])
    if seeds:
        choices.append([(f"seed-{seed}", f"seed={seed}") for seed in seeds])
    found = [
        Variant(_named("_".join(name for name, _ in chosen)), tuple(override for _, override in chosen))
        for chosen in itertools.product(*choices)
    ]
    if len(found) > _MOST:
        raise ConfigError(f"the sweep has {len(found)} runs, more than {_MOST}", fix="give fewer values or seeds")
    if len({one.name for one in found}) < len(found):
        raise ConfigError("two variants of the sweep are the same", fix="give each value once")
    return found


def split(raw: str) -> list[str]:
    """Values between commas; commas inside brackets belong to a value."""
    values, depth = [""], 0
    for character in raw:
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def run_sweep(
    request: StagingRequest,
    wanted: Sequence[Variant],
    console: Console,
    run: Callable[[StagingRequest, Console], int] = run_job,
) -> int:
    """Run the variants that are not complete; returns the first exit code that isn't 0.

    `request` is of the job without its variants; its directory holds theirs. Raises ConfigError, before anything
    runs, for a variant that `areal check` refuses and for a directory with another sweep's runs.
    """
    if request.resume and request.fresh:
        raise ConfigError("--resume and --fresh exclude each other", fix="use --resume to go on, --fresh to start anew")
    jobs = {one.name: _loaded(request, one) for one in wanted}
    name = next(iter(jobs.values())).metadata.name
    directory = (request.run_dir or Path("runs") / f"{name}-sweep").absolute()
    if request.fresh and (aside := set_aside(directory)) is not None:
        console.print(f"the earlier sweep is now {aside}", highlight=False, markup=False)
    if is_occupied(directory) and not request.resume:
        raise ConfigError(
            f"{directory} holds the runs of an earlier sweep", fix="go on with --resume, start anew with --fresh"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for one in wanted:
        _same_run(one, jobs[one.name], directory / one.name)

    worst, failures = int(ExitCode.DONE), []
    for number, one in enumerate(wanted, 1):
        place = directory / one.name
        if _complete(place, jobs[one.name]):
            continue
        console.print(f"\n{number} of {len(wanted)}: {one.name}", style="bold", highlight=False, markup=False)
        began = RunLayout(place).resolved.exists()
        try:
            code = run(_of(request, one, place, resume=began), console)
        except ArealError as error:
            code = int(error.exit_code)
            failures.append((one.name, error))
        worst = worst or code
        write_sweep(directory, _compared(wanted, directory), name)
        if code == ExitCode.DRAINED:
            console.print(f"\nthe sweep in {directory} goes on with --resume", highlight=False, markup=False)
            break
    rows = _compared(wanted, directory)
    write_sweep(directory, rows, name)
    table = Table(*HEAD, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for compared in rows:
        table.add_row(*compared.row)
    console.print(table)
    for failed, why in failures:
        console.print(f"{failed} failed: {why.message}", style="red", highlight=False, markup=False)
    console.print(f"wrote {directory / 'comparison.svg'}, .md and .json", highlight=False, markup=False, soft_wrap=True)
    return worst


def _of(request: StagingRequest, one: Variant, place: Path, *, resume: bool) -> StagingRequest:
    return replace(request, overrides=(*request.overrides, *one.overrides), run_dir=place, resume=resume, fresh=False)


def _loaded(request: StagingRequest, one: Variant) -> RLJob:
    try:
        return load(_of(request, one, request.run_dir or Path("runs"), resume=False))
    except ArealError as error:
        raise ConfigError(f"the variant {one.name} of the sweep is refused: {error.message}", fix=error.fix) from error


def _same_run(one: Variant, job: RLJob, place: Path) -> None:
    """A run that is there must be this variant's."""
    if not RunLayout(place).resolved.exists():
        return
    there = ResolvedJob.load(RunLayout(place).resolved).job
    if there.identity() != job.identity():
        fields = [name for name, value in job.identity().items() if there.identity().get(name) != value]
        raise ConfigError(
            f"{place} was run with another {', '.join(fields[:3])} than {one.name} has now",
            fix="start anew with --fresh, or name another --run-dir",
        )


def _complete(place: Path, job: RLJob) -> bool:
    """Whether it came to its end, or has trained more steps than are asked for now; one with fewer goes on."""
    found = summary.read(place / "summary.json")
    if job.spec.is_rl and read_run(place).steps > _steps(job):
        return True  # of a study by halving: an earlier round of it is over
    if found is None or found["status"] != "Complete":
        return False
    return not job.spec.is_rl or _steps(ResolvedJob.load(place).job) >= _steps(job)


def _steps(job: RLJob) -> int:
    return job.spec.algorithm.max_steps


def _compared(wanted: Sequence[Variant], directory: Path) -> list[ComparedRun]:
    return [read_run(directory / one.name) for one in wanted]


def _named(text: str) -> str:
    """A directory's name: whatever isn't a letter, a digit, or one of +-._ becomes a dash."""
    return re.sub(r"[^A-Za-z0-9+\-._]+", "-", text).strip("-") or "run"
