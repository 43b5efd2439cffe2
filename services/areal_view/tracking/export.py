"""The export: sends rows that a tracker doesn't have, once or until the run ends, and notes how many it has.

Owns `tracking/<tracker>.json` in the run directory: the project and how many rows were sent to it. Nothing here is
known to the run, which it can't slow down.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from areal.errors import ArealError, InfraError
from areal.files import write_atomically
from areal.observe.live import read_live
from areal.plan.layout import RunLayout
from areal.plan.resolved import ResolvedJob
from areal.record import summary
from areal.spec.locate import spec_fields

from areal_view.tracking.tracker import Ending, FigureRows, Mlflow, TrackedRun, Tracker, Trackio, Wandb
from areal_view.why.job_facts import redacted

TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
PROJECT = "areal"
_ENDINGS: Mapping[str, Ending] = {"Complete": "Complete", "Stopped": "Stopped"}  # by status; any other: Failed
_LOOK_S = 1.0
_VARIABLES = {
    "wandb": "WANDB_API_KEY, WANDB_BASE_URL, WANDB_MODE",
    "mlflow": "MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN",
    "trackio": "TRACKIO_DIR, TRACKIO_SPACE_ID, HF_TOKEN",
}


def export(root: Path, name: str, project: str, *, follow: bool, tracker: Tracker | None = None) -> tuple[int, str]:
    """Send what is new, with `follow` until the run has ended; how many rows, and where they are found.

    Raises ConfigError when the tracker's package is missing, InfraError when the tracker fails.
    """
    layout = RunLayout(root)
    note = layout.tracking / f"{name}.json"
    try:
        layout.tracking.mkdir(mode=0o700, exist_ok=True)
        opened = tracker or TRACKERS[name](_tracked(layout, project))
        return _export(layout, opened, note, project, follow=follow)
    except ArealError:
        raise
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InfraError(
            f"{name}: {redacted(first)}",
            fix=f"look at its settings ({_VARIABLES[name]}) and export again: what arrived is not sent twice",
        ) from error


def _export(layout: RunLayout, tracker: Tracker, note: Path, project: str, *, follow: bool) -> tuple[int, str]:
    had = has = tracker.begin(_noted(note, project))
    place, rows, ending = tracker.place, FigureRows(layout.metrics, layout.evaluations), None
    try:
        while True:
            more = follow and _goes_on(layout)  # asked first: what is written before an end is read after it
            found = rows.refresh()
            if len(found) > has:
                tracker.send(found[has:], has)
                has = len(found)
                if tracker.sure:
                    _note(note, project, has)
            if not more:
                break
            time.sleep(_LOOK_S)
        ending = _ending(layout)
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            tracker.close(None)
            _note(note, project, has)
        raise
    tracker.close(ending)
    _note(note, project, has)
    return has - had, place


def _tracked(layout: RunLayout, project: str) -> TrackedRun:
    resolved = ResolvedJob.load(layout.root)
    fields = spec_fields(resolved.job)
    config = {name: _shown(name, value) for name, value in fields.items() if not name.endswith(".env")}
    return TrackedRun(resolved.uid, layout.root.name, project, config, layout.tracking)


def _shown(name: str, value: Any) -> Any:
    """A field as trackers take it, without what looks like a secret."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return redacted(f"{name}={text}").removeprefix(f"{name}=")


def _note(note: Path, project: str, rows: int) -> None:
    write_atomically(note, orjson.dumps({"project": project, "rows": rows}), private=True)


def _noted(note: Path, project: str) -> int:
    """Rows that were sent to this project."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = orjson.loads(note.read_bytes())
        if found["project"] == project:
            return int(found["rows"])
    return 0


def _goes_on(layout: RunLayout) -> bool:
    live = read_live(layout.live)
    return live.goes_on if live is not None else summary.read(layout.summary) is None


def _ending(layout: RunLayout) -> Ending | None:
    live = read_live(layout.live)
    if live is not None and live.goes_on:
        return None
    status = (summary.read(layout.summary) or {}).get("status")
    return _ENDINGS.get(status, "Failed") if status is not None else None
