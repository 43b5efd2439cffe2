"""Persistent state of the controller besides its journal: the served weights, the hot fields, and finished evaluations.

Owns one small JSON file for each controller fence, replaced atomically. It is written before an acceptance is answered,
so a restarted controller serves what its predecessor accepted. A controller starts from the newest older file and
writes its own at once: what an older controller writes after that is read by nobody. Hot fields hold as long as the job
file against which they were set: once that changed, what it says holds. `evaluations.jsonl` has one line a finished
evaluation, also of earlier starts.
"""

import contextlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from areal.errors import DataError, FencedError
from areal.files import append_lines, read_lines, write_atomically
from areal.rollout.contract.values import fields_of
from areal.rollout.controller.decisions import RecordEvaluation
from areal.rollout.controller.inputs import PublishedWeights

log = logging.getLogger(__name__)

_RESULT = ("name", "policy_id", "version", "rows", "mean", "oldest_version", "newest_version", "failed_rows")
_NAME = re.compile(r"controller-kept\.f(\d+)\.json")


def check_alive(fence: int, newest: int) -> None:
    """Raises FencedError when a newer controller than `fence` began."""
    if newest > fence:
        raise FencedError(f"controller fence {fence} is over: {newest} has begun", fix="stop this controller")


@dataclass(frozen=True, slots=True)
class RestoredState:
    """None where nothing was kept."""

    served: PublishedWeights | None = None
    max_steps: int | None = None
    max_staleness: int | None = None
    max_concurrent: int | None = None
    job_digest: str = ""  # of the job file against which the hot fields were set
    ahead: int | None = None

    def under(self, job_digest: str) -> "RestoredState":
        """The state that holds under this job file."""
        return self if job_digest == self.job_digest else RestoredState(self.served, job_digest=job_digest)


class KeptFile:
    """The file of one controller; `kept` is what it starts from."""

    def __init__(self, directory: Path, fence: int, newest: Callable[[], int], job_digest: str = "") -> None:
        self._fence = fence
        self._newest = newest
        self._path = directory / f"controller-kept.f{fence}.json"
        directory.mkdir(parents=True, exist_ok=True)
        named = [(int(match[1]), path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
        older = sorted((other, path) for other, path in named if other < fence)
        found = _read(older[-1][1]) if older else RestoredState()
        self.kept = found.under(job_digest)
        for name, value in asdict(found).items():
            if name not in ("served", "job_digest") and value is not None and value != asdict(self.kept)[name]:
                log.warning("%s=%s was set during the run; the job file has changed since, and holds", name, value)
        self.write(self.kept)

    def write(self, kept: RestoredState) -> None:
        """On disk when this returns. Raises FencedError when a newer controller began, which may not have read it."""
        write_atomically(self._path, orjson.dumps(asdict(kept)))
        check_alive(self._fence, self._newest())


def _read(path: Path) -> RestoredState:
    try:
        data: dict[str, Any] = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"{path} is damaged: {error}", fix="restore it, or start the run anew") from error
    served = data.pop("served", None)
    return RestoredState(served=PublishedWeights(**served) if served else None, **data)


class EvaluationsFile:
    """Appends results and remembers them all. A line that a crash cut is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: list[dict[str, Any]] = []
        for line in read_lines(path).whole:
            with contextlib.suppress(orjson.JSONDecodeError):
                self.results.append(orjson.loads(line))

    def append(self, record: RecordEvaluation) -> None:
        """Write one result, after a newline if a crash cut the last line."""
        result = fields_of(record, _RESULT) | {"at": time.time()}
        if record.figures:
            result |= {**record.figures, "failed_samples": record.failed_samples}
        if record.sets:
            result["sets"] = {name: dict(figures) for name, figures in record.sets.items()}
        self.results.append(result)
        append_lines(self._path, [orjson.dumps(result)])
