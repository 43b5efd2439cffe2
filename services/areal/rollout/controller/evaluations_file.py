"""`evaluations.jsonl`: one line a finished evaluation, also of earlier starts of the controller."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import orjson

from areal.files import append_lines, read_lines
from areal.rollout.controller.decisions import RecordEvaluation


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
        result = {
            "name": record.name,
            "policy_id": record.policy_id,
            "version": record.version,
            "rows": record.rows,
            "mean": record.mean,
            "oldest_version": record.oldest_version,
            "newest_version": record.newest_version,
            "failed_rows": record.failed_rows,
            "at": time.time(),
        }
        if record.figures:
            result |= {**record.figures, "failed_samples": record.failed_samples}
        if record.sets:
            result["sets"] = {name: dict(figures) for name, figures in record.sets.items()}
        self.results.append(result)
        append_lines(self._path, [orjson.dumps(result)])
