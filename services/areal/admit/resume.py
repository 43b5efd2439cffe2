"""Checks of a run directory before a start: empty for a new run, of the same job for a resumed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal.errors import ConfigError
from areal.plan.layout import RunLayout
from areal.spec.job import RLJob


def refuse_occupied(run_dir: Path) -> None:
    """Raise ConfigError unless a new run may start in `run_dir`."""
    layout = RunLayout(run_dir)
    if not run_dir.exists():
        return
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is a file, not a run directory", fix="Choose another one with --run-dir.")
    if layout.resolved.exists():
        raise ConfigError(
            f"{run_dir} already holds a run",
            fix="Continue it with --resume, replace it with --fresh, or choose another directory with --run-dir.",
        )
    ours = _before_the_first_start(layout)
    strange = sorted(path.name for path in run_dir.iterdir() if path.name not in ours)
    if strange:
        raise ConfigError(
            f"{run_dir} is not empty and no run: it holds {', '.join(strange[:5])}",
            fix="Choose another directory with --run-dir, or move those files away.",
        )


def _before_the_first_start(layout: RunLayout) -> set[str]:
    """What a start that was cut off before `resolved.json` may have left behind, and `areal prepare` makes."""
    paths = (
        layout.token, layout.redis, layout.recipe, layout.dataset, layout.logs, layout.weights, layout.checkpoints,
        layout.fences, layout.journal.parent, layout.evidence, layout.trajectories, layout.recording,
        layout.tokens, layout.tensorboard,
    )  # fmt: skip
    names = {path.name for path in paths}
    return names | {f"{layout.token.name}.part", f"{layout.resolved.name}.part"}


def check_same_run(earlier: RLJob, now: RLJob) -> None:
    """Raise ConfigError with the differences when `now` isn't the run that `earlier` was.

    Live fields (steps, staleness, concurrency) and those that a restart may change (replicas, intervals, budgets) are
    no part of a run's identity.
    """
    before, after = earlier.identity(), now.identity()
    changed = [field for field in {**before, **after} if before.get(field) != after.get(field)]
    if not changed:
        return
    lines = "".join(
        f"\n  {field}: was {_show(before.get(field))}, now {_show(after.get(field))}"
        + (f" ({now.where(field)})" if now.where(field) else "")
        for field in changed
    )
    raise ConfigError(
        f"this is another job than the one that was started here:{lines}",
        fix="Take these changes back to resume, or start a new run with --fresh or another --run-dir.",
    )


def _show(value: Any) -> str:
    return "not given" if value is None else repr(value)
