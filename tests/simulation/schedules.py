"""Many schedules: runs them over some processes, reports what broke, replays a seed with its trace."""

import argparse
import gc
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from areal.errors import ExitCode

from simulation.run import ScheduleOutcome, simulate
from simulation.scenario import Aim, draw

_CHUNK = 50  # schedules that a process takes at once: about a second of work
_SHOWN = 3  # failing seeds that are printed with their trace


@dataclass(slots=True)
class SchedulesReport:
    """What a batch of schedules came to."""

    first_seed: int
    count: int
    aim: Aim | None = None
    failures: list[ScheduleOutcome] = field(default_factory=list)
    virtual_s: float = 0.0
    events: int = 0
    groups: int = 0
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every promise was kept on every schedule."""
        return not self.failures

    def text(self) -> str:
        """For people: a line when all is well, else each failing seed with its schedule and how to replay it."""
        lines = [
            f"{self.count} schedules from seed {self.first_seed}: {len(self.failures)} failed; {self.groups} groups, "
            f"{self.virtual_s / 3600:.1f} virtual hours, {self.events} events in {self.wall_s:.1f} s"
        ]
        for failure in self.failures[:_SHOWN]:
            lines += ["", *story(failure.seed, self.aim)]
        lines += [f"seed {f.seed}: {f.problems[0]}" for f in self.failures[_SHOWN:]]
        return "\n".join(lines)


def story(seed: int, aim: Aim | None = None) -> list[str]:
    """A seed's scenario, its event trace, what went wrong, and the command that shows it again."""
    scenario = draw(seed, aim)
    outcome = simulate(scenario, trace=True)
    lines = [*scenario.story(), *outcome.trace]
    lines += [f"PROBLEM {problem}" for problem in outcome.problems] or ["no promise was broken"]
    aimed = f" AIM={aim.name}" if aim else ""
    return [*lines, f"replay: make sim SEED={seed}{aimed}"]


def _chunk(seeds: range, aim: Aim | None) -> tuple[float, int, int, list[ScheduleOutcome]]:
    outcomes = [simulate(draw(seed, aim)) for seed in seeds]
    return (
        sum(outcome.virtual_s for outcome in outcomes),
        sum(outcome.events for outcome in outcomes),
        sum(outcome.groups for outcome in outcomes),
        [outcome for outcome in outcomes if outcome.problems],
    )


def _collect_seldom() -> None:
    """A schedule makes few cycles, and many objects that live as long as it: a seventh of its time was collections."""
    gc.freeze()
    gc.set_threshold(50_000)


def run_schedules(first_seed: int, count: int, jobs: int = 1, aim: Aim | None = None) -> SchedulesReport:
    """Simulate `count` schedules from `first_seed` on, over `jobs` processes; `aim` chooses what their faults hit."""
    report = SchedulesReport(first_seed, count, aim)
    started = time.monotonic()
    last = first_seed + count
    chunks = [range(start, min(start + _CHUNK, last)) for start in range(first_seed, last, _CHUNK)]
    if jobs > 1:
        with multiprocessing.get_context("spawn").Pool(jobs, _collect_seldom) as pool:
            results = pool.starmap(_chunk, [(chunk, aim) for chunk in chunks], chunksize=1)
    else:
        results = [_chunk(chunk, aim) for chunk in chunks]
    for virtual_s, events, groups, failures in results:
        report.virtual_s += virtual_s
        report.events += events
        report.groups += groups
        report.failures += failures
    report.wall_s = time.monotonic() - started
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: `--schedules N` from `--first`, or `--replay SEED`."""
    parser = argparse.ArgumentParser(prog="make sim", description="Simulate the platform's cores under faults.")
    parser.add_argument("--schedules", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", type=int, help="print one seed's schedule, event by event")
    parser.add_argument("--aim", choices=[aim.name for aim in Aim], help="what the faults of all schedules hit")
    arguments = parser.parse_args(argv)
    if arguments.schedules < 1 or arguments.jobs < 1 or arguments.first < 0:
        parser.error("--schedules and --jobs are at least 1, --first at least 0")
    aim = Aim[arguments.aim] if arguments.aim else None
    if arguments.replay is not None:
        lines = story(arguments.replay, aim)
        print("\n".join(lines))
        return ExitCode.BUG if any(line.startswith("PROBLEM") for line in lines) else ExitCode.DONE
    report = run_schedules(arguments.first, arguments.schedules, arguments.jobs, aim)
    print(report.text())
    return ExitCode.DONE if report.ok else ExitCode.BUG


if __name__ == "__main__":
    raise SystemExit(main())
