"""Reads what arrived at a tracker with the tracker's own package: `read_back.py TRACKER PROJECT UID PLACE`.

Runs in the environment of `tools/venv trackers` and imports no code of ours. Prints figures as [name, step or version,
value], the configuration, and how the tracker says that the run ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def from_wandb(project: str, uid: str, place: Path) -> dict[str, Any]:
    """Every file of its offline mode, as an upload reads them; a step that two files have is an error."""
    from wandb.proto.wandb_internal_pb2 import Record

    figures, config, numbers, code = [], {}, [], None
    for file in sorted(place.glob("wandb/offline-run-*/run-*.wandb")):
        assert file.name == f"run-{uid}.wandb"
        for raw in records(file.read_bytes()):
            record = Record.FromString(raw)
            if record.HasField("run"):
                assert record.run.project == project
                config |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
            if record.HasField("exit"):
                code = record.exit.exit_code
            if record.HasField("history"):
                items = record.history.item
                row = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in items}
                numbers.append(record.history.step.num)
                axis = next(name for name in ("trainer/step", "evaluation/version") if name in row)
                at = row.pop(axis)
                figures += [[name, at, value] for name, value in row.items() if not name.startswith("_")]
    assert numbers == list(range(len(numbers)))
    return {"figures": figures, "config": config, "state": code}


def records(data: bytes) -> list[bytes]:
    """LevelDB's log format behind a header of seven bytes: blocks of 32 KiB, records cut at their ends."""
    found, part, at = [], b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            found.append(part)
            part = b""
    return found


def from_mlflow(project: str, uid: str, place: Path) -> dict[str, Any]:
    """Whole histories of the only run with its tag."""
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(project)
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`areal.uid` = '{uid}'")
    figures = [
        [name, one.step, one.value]
        for name in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, name)
    ]
    return {"figures": figures, "config": run.data.params, "state": run.info.status}


def from_trackio(project: str, uid: str, place: Path) -> dict[str, Any]:
    """Its log of the only run."""
    import trackio

    (run,) = trackio.Api().runs(project)
    assert run.name == uid
    rows = trackio.SQLiteStorage.get_logs(project, run_id=run.id)
    figures = [
        [name, row["step"], value] for row in rows for name, value in row.items() if name not in ("step", "timestamp")
    ]
    return {"figures": figures, "config": run.config, "state": None}


if __name__ == "__main__":
    tracker, project, uid, place = sys.argv[1:]
    read = {"wandb": from_wandb, "mlflow": from_mlflow, "trackio": from_trackio}[tracker]
    json.dump(read(project, uid, Path(place)), sys.stdout)
