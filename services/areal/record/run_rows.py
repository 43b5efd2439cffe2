"""Reader of a run's records: the trainer's steps and the controller's evaluations, while they grow.

Owns the reading of `metrics.jsonl` and `evaluations.jsonl` as values. A line without its end is still being written and
is left for the next reading; of a step trained again after a restart the newest line counts.
"""

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True)
class Step:
    """One trained batch. `step` counts from 0 and makes version step + 1."""

    step: int
    reward: float | None = None
    staleness_mean: float = 0.0
    staleness_max: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of the whole step, waiting included
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds by phase
    at: float = 0.0  # unix seconds
    trained_tokens: int = 0  # of them, those in the loss
    updates: int | None = None  # of the optimizer; None where nobody wrote it
    skipped: int = 0  # updates left out, because their gradients were not finite
    groups: int = 0
    loss: float | None = None  # None where it was not finite
    sequences: int = 0
    fixed_loss: float | None = None  # the loss of a supervised training, which has no reward
    same_reward_groups: int = 0  # groups whose samples all earned the same: they teach nothing

    @property
    def length(self) -> float | None:
        """Mean tokens of a sequence, prompt included."""
        return self.tokens / self.sequences if self.sequences else None

    @property
    def same_share(self) -> float:
        """Which part of the groups taught nothing."""
        return self.same_reward_groups / self.groups if self.groups else 0.0

    @property
    def wait_seconds(self) -> float:
        """Time spent waiting for data."""
        return sum(seconds for phase, seconds in self.phases.items() if phase in _WAITING)


@dataclass(frozen=True)
class HeldOut:
    """One finished evaluation on held-out rows."""

    version: int
    mean: float
    rows: int = 0
    at: float = 0.0
    is_loss: bool = False  # then the lowest is the best, else an accuracy's highest
    figures: Mapping[str, float] = field(default_factory=dict)  # of sampled answers: avg@n, pass@k
    sets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by name: rows, mean, and these


def sampled_figures_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """avg@n and pass@k of a line of evaluations.jsonl."""
    return {name: float(value) for name, value in entry.items() if name.startswith(_SAMPLED)}


def step_figures(entry: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a line of metrics.jsonl, named as in TensorBoard: trainer/loss, seconds/wait, figures/format."""
    return dict(_figures("trainer", entry, _NO_FIGURES))


def evaluation_figures(entry: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a line of evaluations.jsonl, those of a set under its name: evaluation/mean, evaluation/hard/mean."""
    sets = entry.get("sets")
    figures = dict(_figures("evaluation", entry, (*_NO_FIGURES, "sets")))
    for name, inner in sets.items() if isinstance(sets, Mapping) else ():
        if isinstance(inner, Mapping):
            figures |= _figures(f"evaluation/{name}", inner, ())
    return figures


def _figures(group: str, entry: Mapping[str, Any], without: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Numbers by name; those of an inner object under its own name."""
    for name, value in entry.items():
        if name in without:
            continue
        if isinstance(value, Mapping):
            yield from _figures(name, value, ())
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{group}/{name}", value


def best_of(held_out: Sequence[HeldOut]) -> HeldOut:
    """The best of some evaluations; of equals the first."""
    if held_out[0].is_loss:
        return min(held_out, key=lambda one: one.mean)
    return max(held_out, key=lambda one: one.mean)


_WAITING = ("wait",)
_SAMPLED = ("avg@", "pass@")
_NO_FIGURES = ("step", "version", "fence", "at")


class JsonLines:
    """Reads a growing file of JSON lines from where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Entries that were completed since the last call. A file that shrank is read from its start."""
        try:
            with self._path.open("rb") as file:
                file.seek(0, 2)
                if file.tell() < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                entry = _entry(line)
            except (ValueError, RecursionError):
                continue  # a line torn by a crash, or damaged
            if isinstance(entry, dict):
                yield entry


def _entry(line: bytes) -> Any:
    try:
        return orjson.loads(line)  # ten times as fast, which ten thousand lines need
    except ValueError:
        return json.loads(line)  # knows NaN


class Records:
    """All steps and evaluations of a run, kept up to date by `refresh`.

    With `newest`, for who follows a run to its end, only that many steps are kept whole (up to twice as many between
    two cuts); of a step before them its reward or loss stays, 8 bytes.
    """

    def __init__(self, metrics: Path, evaluations: Path, newest: int | None = None) -> None:
        self._metrics = JsonLines(metrics)
        self._evaluations = JsonLines(evaluations)
        self._newest = newest
        self._steps: dict[int, Step] = {}
        self._curve = array("d")  # by step: the reward or loss of those that are not kept whole, not a number elsewhere
        self._held_out: dict[int, HeldOut] = {}

    def refresh(self) -> "Records":
        """Read what is new."""
        for entry in self._metrics.new():
            with suppress(TypeError, ValueError, AttributeError):  # a damaged line
                step = step_of(entry)
                if step is not None:
                    self._steps[step.step] = step
                    self._cut()
        for entry in self._evaluations.new():
            with suppress(TypeError, ValueError):
                if "version" in entry and entry.get("mean") is not None:
                    version = int(entry["version"])
                    self._held_out[version] = HeldOut(
                        version,
                        float(entry["mean"]),
                        int(entry.get("rows", 0)),
                        float(entry.get("at", 0.0)),
                        entry.get("metric") == "loss",
                        sampled_figures_of(entry),
                        entry.get("sets") or {},
                    )
        return self

    def _cut(self) -> None:
        if self._newest is None or len(self._steps) <= 2 * self._newest:
            return
        for number in sorted(self._steps)[: -self._newest]:
            step = self._steps.pop(number)
            self._curve.extend([math.nan] * (number + 1 - len(self._curve)))
            value = step.reward if step.fixed_loss is None else step.fixed_loss
            self._curve[number] = math.nan if value is None else value

    @property
    def steps(self) -> list[Step]:
        """Steps in order, of those that are kept whole."""
        return [self._steps[step] for step in sorted(self._steps)]

    @property
    def earlier(self) -> list[float]:
        """Rewards, or losses of a supervised training, of the steps before `steps`."""
        return [value for value in self._curve[: min(self._steps, default=0)] if not math.isnan(value)]

    @property
    def held_out(self) -> list[HeldOut]:
        """Evaluations by version."""
        return [self._held_out[version] for version in sorted(self._held_out)]

    @property
    def trained(self) -> int:
        """Batches trained so far: the newest version."""
        return max(self._steps, default=-1) + 1


def step_of(entry: Mapping[str, Any]) -> Step | None:
    """A line of metrics.jsonl as a step; None for other lines."""
    if "step" not in entry:
        return None
    reward = entry.get("reward_mean")
    return Step(
        step=int(entry["step"]),
        reward=None if reward is None else float(reward),
        staleness_mean=float(entry.get("staleness_mean") or 0.0),
        staleness_max=int(entry.get("staleness_max") or 0),
        tokens=int(entry.get("tokens") or 0),
        trained_tokens=int(entry.get("trained_tokens", entry.get("tokens")) or 0),
        updates=None if entry.get("updates") is None else int(entry["updates"]),
        skipped=int(entry.get("skipped_updates") or 0),
        groups=int(entry.get("groups") or 0),
        loss=None if entry.get("loss") is None else float(entry["loss"]),
        sequences=int(entry.get("sequences") or 0),
        same_reward_groups=int(entry.get("zero_variance_groups") or 0),
        fixed_loss=float(entry["loss"]) if "training" in entry and entry.get("loss") is not None else None,
        seconds=float(entry.get("wall_s") or 0.0),
        phases={str(name): float(seconds) for name, seconds in (entry.get("seconds") or {}).items()},
        at=float(entry.get("at") or 0.0),
    )
