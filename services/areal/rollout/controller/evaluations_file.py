"""`evaluations.jsonl`: one line a finished evaluation, also of earlier starts of the controller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson

from areal.rollout.controller.decisions import RecordEvaluation


class EvaluationsFile:
    """Appends results and remembers them all. A line that a crash cut is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: list[dict[str, Any]] = []
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    self.results.append(orjson.loads(line))
                except orjson.JSONDecodeError:
                    continue

    def append(self, record: RecordEvaluation) -> None:
        """Write one result, after a newline if a crash cut the last line."""
        result = {
            "policy_id": record.policy_id,
            "version": record.version,
            "rows": record.rows,
            "mean": record.mean,
            "oldest_version": record.oldest_version,
            "newest_version": record.newest_version,
            "failed_rows": record.failed_rows,
            "at": time.time(),
        }
        self.results.append(result)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                torn = file.read(1) != b"\n"
            else:
                torn = False
            file.write((b"\n" if torn else b"") + orjson.dumps(result) + b"\n")
