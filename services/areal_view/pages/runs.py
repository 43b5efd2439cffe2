"""Run directories as the pages read them: rows of metrics, evaluations, the recording, the job.

Owns what is kept in memory of a run, and brings it up to date when a file grew. Where its index lies is outside of the
run, which may be read-only.
"""

import json
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import xxhash
from areal.errors import ConfigError
from areal.observe.live import Live, read_live
from areal.plan.layout import RunLayout
from areal.record.run_rows import JsonLines, step_figures

from areal_view.index.record_index import IndexProgress, RecordIndex


class ShownRun:
    """One run. Safe from any thread. `texts`: its recording is indexed for lists and searches, too."""

    def __init__(self, name: str, root: Path, cache: Path, study: str = "", *, texts: bool = False) -> None:
        self.name = name
        self.study = study  # name of the directory of runs that are variants of one job; empty outside of one
        self._texts = texts
        self.layout = RunLayout(root)
        self._lock = threading.Lock()
        self._metrics = JsonLines(self.layout.metrics)
        self._evaluations = JsonLines(self.layout.evaluations)
        self._rows: dict[int, Mapping[str, Any]] = {}
        self._names: set[str] = set()
        self._shapes: set[tuple[str, ...]] = set()  # fields that rows had: a new one may have a new figure
        self._held_out: dict[int, Mapping[str, Any]] = {}
        file = cache / f"{xxhash.xxh3_64_hexdigest(str(root).encode())}.sqlite"
        self._index_file = file
        self._index: RecordIndex | None = None

    @property
    def index(self) -> RecordIndex:
        """The recording, with all that was written by now."""
        with self._lock:
            if self._index is None:
                places = [self.layout.trajectories, self.layout.recording]
                self._index = RecordIndex(self._index_file, places, texts=self._texts)
        return self._index.refresh()

    @property
    def behind(self) -> int:
        """Bytes of its recording that are not indexed yet."""
        return self._index.behind if self._index is not None else 0

    @property
    def progress(self) -> IndexProgress | None:
        """How much of its recording is indexed; None before its first look."""
        return self._index.progress if self._index is not None else None

    def rows(self) -> list[Mapping[str, Any]]:
        """Rows of metrics by step; of a step trained again the newest."""
        with self._lock:
            for row in self._metrics.new():
                if _counts(row.get("step")):
                    self._rows[row["step"]] = row
                    self._name(row)
            return [self._rows[step] for step in sorted(self._rows)]

    @property
    def figure_names(self) -> Set[str]:
        """Names of all figures that its steps recorded, as in TensorBoard; own ones also while they are not finite."""
        self.rows()
        with self._lock:
            return frozenset(self._names)

    def _name(self, row: Mapping[str, Any]) -> None:
        own = row.get("figures")
        own = own if isinstance(own, Mapping) else {}
        shape = (*(name for name, value in row.items() if value is not None), "", *own)
        if shape not in self._shapes:
            self._shapes.add(shape)
            self._names.update(step_figures(row))
            self._names.update(f"figures/{name}" for name in own)

    def held_out(self) -> list[Mapping[str, Any]]:
        """Evaluations by version."""
        with self._lock:
            for row in self._evaluations.new():
                if _counts(row.get("version")) and isinstance(row.get("mean"), int | float):
                    self._held_out[row["version"]] = row
            return [self._held_out[version] for version in sorted(self._held_out)]

    def resolved(self) -> dict[str, Any]:
        """The resolved job; empty when it can't be read."""
        return _json(self.layout.resolved)

    @property
    def training(self) -> str:
        """`RL`, or the name of its training on fixed rows."""
        told = self.resolved().get("job", {}).get("spec", {}).get("training")
        return str(told.get("name") if isinstance(told, dict) else told or "RL")

    @property
    def is_supervised(self) -> bool:
        """Whether it trains on fixed rows: its figures are losses, rows and tokens."""
        return self.training != "RL"

    @property
    def began(self) -> float:
        """When its job was written, unix seconds."""
        return _stat(self.layout.resolved)[0] / 1e9

    def summary(self) -> dict[str, Any]:
        """The run's summary; empty before its end."""
        return _json(self.layout.summary)

    def live(self) -> Live | None:
        """The roles' newest state; None when they never said any."""
        return read_live(self.layout.live)

    def stamps(self) -> dict[str, tuple[int, ...]]:
        """Stamps that change when the curves, or anything that its page shows, do."""
        curves = (*_stat(self.layout.metrics), *_stat(self.layout.evaluations))
        return {"curves": curves, "facts": (*curves, *_stat(self.layout.summary), *_stat(self.layout.live))}

    def close(self) -> None:
        """Give the index back."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None


class Runs:
    """The runs below some directories, looked for anew at each listing. `name`: a run's, instead of its directory's."""

    def __init__(self, places: Iterable[Path], cache: Path | None = None, name: str = "") -> None:
        self._places = [place.absolute() for place in places]
        self._cache = cache or _cache()
        self._name = name
        self._known: dict[Path, ShownRun] = {}
        self._lock = threading.Lock()

    def all(self) -> list[ShownRun]:
        """The newest first."""
        with self._lock:
            taken = {run.name for run in self._known.values()}
            for root, base, study in self._roots():
                if root not in self._known:
                    name = next(n for n in _names(self._name or base) if n not in taken)
                    taken.add(name)
                    self._known[root] = ShownRun(name, root, self._cache, study, texts=True)
            gone = [root for root in self._known if not (root / "resolved.json").is_file()]
            for root in gone:
                self._known.pop(root).close()
            return sorted(self._known.values(), key=lambda run: -_stat(run.layout.resolved)[0])

    def find(self, name: str) -> ShownRun | None:
        """The run of this name."""
        return next((run for run in self.all() if run.name == name), None)

    def close(self) -> None:
        """Give everything back."""
        for run in self._known.values():
            run.close()

    def _roots(self) -> Iterable[tuple[Path, str, str]]:
        """Directory, name and study of each run: also of those one level deeper, which a study or a sweep made."""
        for place in self._places:
            if not place.is_dir():
                raise ConfigError(f"there is no directory {place}", fix="name a run, or the directory of runs")
            if (place / "resolved.json").is_file():
                yield place, place.name, ""
                continue
            here = place.name if (place / "comparison.json").is_file() else ""
            for path in sorted(path for path in place.iterdir() if path.is_dir()):
                if (path / "resolved.json").is_file():
                    yield path, path.name, here
                    continue
                for found in sorted(path.glob("*/resolved.json")):
                    yield found.parent, f"{path.name}:{found.parent.name}", path.name


def _names(base: str) -> Iterable[str]:
    yield base
    number = 2
    while True:
        yield f"{base}~{number}"
        number += 1


def _cache() -> Path:
    """Directory of indices: in the user's cache, or for this process only where that can't be written."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "areal" / "index"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="areal-index-"))
    return place if os.access(place, os.W_OK) else Path(tempfile.mkdtemp(prefix="areal-index-"))


def _counts(value: Any) -> bool:
    """Whether a damaged or strange file may go on with it as a step or a version."""
    return isinstance(value, int) and 0 <= value < 2**53


def _json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size
