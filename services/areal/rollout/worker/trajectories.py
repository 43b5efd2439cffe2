"""Trajectories for people: the first sample of each group, one JSON line each, as text.

Owns one file and its size: when it is full it becomes the one before, and the one before that is deleted.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from areal.files import append_lines
from areal.rollout.worker.samples import versions_of
from areal.v1 import common_pb2 as common
from areal.workflow.episode import Episode
from areal.workflow.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024 * 1024  # of a file; there are two
MAX_TEXT = 8_192  # characters of a prompt or a completion


class TrajectoryLog:
    """Appends lines in memory; `flush` writes them. A full disk costs trajectories, never the worker."""

    def __init__(self, path: Path, tokenizer: Tokenizer, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._failed = False

    def add(self, group: int, index: int, episode: Episode, verdict: common.Verdict | None = None) -> None:
        """Keep a sample, if it is its group's first; `verdict` is what came of its last scoring."""
        if index == 0:
            self._lines.append(orjson.dumps(self._line(group, index, episode, verdict)))

    def flush(self) -> None:
        """Write what was kept."""
        lines, self._lines = self._lines, []
        if not lines or self._failed:
            return
        try:
            if append_lines(self._path, lines) > self._max_bytes:
                self._path.replace(self._path.with_suffix(".jsonl.1"))
        except OSError as error:
            self._failed = True
            log.error("no more trajectories are written: %s", error)

    def _line(self, group: int, index: int, episode: Episode, verdict: common.Verdict | None) -> dict[str, Any]:
        sequence = episode.sequences[0]
        sampled = np.flatnonzero(sequence.versions >= 0)
        start = int(sampled[0]) if len(sampled) else len(sequence.input_ids)
        ids = sequence.input_ids.tolist()
        return {
            "g": group,
            "i": index,
            "prompt": self._tokenizer.decode(ids[:start], skip_special=False)[-MAX_TEXT:],
            "completion": self._tokenizer.decode(ids[start:], skip_special=False)[:MAX_TEXT],
            "reward": episode.reward,
            "versions": list(versions_of(episode) or ()),
            "truncated": episode.truncated,
            **({} if verdict is None else {"verdict": _shown(verdict)}),
        }


def _shown(verdict: common.Verdict) -> dict[str, str]:
    """How the reward came about, without what wasn't said."""
    said = {name: getattr(verdict, name) for name in ("status", "method", "detail", "tier")}
    return {name: text[:MAX_TEXT] for name, text in said.items() if text}
