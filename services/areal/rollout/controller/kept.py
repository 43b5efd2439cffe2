"""What the controller keeps on disk besides its journal: the served weights and the hot fields.

Owns one small JSON file, replaced atomically. It is written before an acceptance is answered, so a restarted controller
serves what its predecessor accepted.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from areal.errors import DataError
from areal.rollout.controller.reports import Weights


@dataclass(frozen=True, slots=True)
class Kept:
    """None where nothing was kept."""

    served: Weights | None = None
    max_steps: int | None = None
    max_staleness: int | None = None
    max_concurrent: int | None = None


class KeptFile:
    """Reads and replaces the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = self._read()

    def _read(self) -> Kept:
        try:
            data: dict[str, Any] = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return Kept()
        except orjson.JSONDecodeError as error:
            raise DataError(f"{self.path} is damaged: {error}", fix="restore it, or start the run anew") from error
        served = data.pop("served", None)
        return Kept(served=Weights(**served) if served else None, **data)

    def update(self, **changes: Any) -> None:
        """Change some fields; on disk when this returns."""
        self.kept = replace(self.kept, **changes)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".tmp")
        with beside.open("wb") as file:
            file.write(orjson.dumps(asdict(self.kept)))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
