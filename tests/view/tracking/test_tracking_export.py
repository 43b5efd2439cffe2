"""The export's own part: what is sent when, and what is noted of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from areal.cli.main import app, guarded
from areal.errors import InfraError
from areal.observe.live import Live, write_live
from areal_view.tracking import export as exporting
from areal_view.tracking.export import export
from areal_view.tracking.tracker import Ending, FigureRow
from support.run_summary import run_summary
from support.tracked_run import evaluation_line, make_tracked_run, step_line


class Listed:
    """A tracker that remembers nothing by itself. `then` is called after each sending."""

    place = "a list"
    sure = True

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.rows: list[tuple[str, int]] = []
        self.endings: list[Ending | None] = []
        self._then = then

    def begin(self, known: int) -> int:
        return known

    def send(self, rows: Sequence[FigureRow], first: int) -> None:
        assert first == len(self.rows)
        self.rows += [(row.axis.partition("/")[0], row.at_axis) for row in rows]
        self._then()

    def close(self, ending: Ending | None) -> None:
        self.endings.append(ending)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_tracked_run(tmp_path / "digits")


def alive(run: Path, *, ended: bool = False) -> None:
    write_live(run / "live.json", Live(0.0, os.getpid(), psutil.Process().create_time(), 3, 5, ended=ended))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_rows_are_followed_until_the_run_ends(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_LOOK_S", 0.0)

    def go_on() -> None:
        match len(tracker.rows):
            case 4:
                append(run / "metrics.jsonl", step_line(3, 0.5) + '{"step": 4, "at"')  # still being written
            case 5:
                append(run / "evaluations.jsonl", evaluation_line(4))
                (run / "summary.json").write_text(json.dumps(run_summary(status="Stopped")))
                alive(run, ended=True)

    alive(run)
    tracker = Listed(go_on)
    assert export(run, "wandb", "math", follow=True, tracker=tracker) == (6, "a list")
    first = [("trainer", 0), ("trainer", 1), ("trainer", 2), ("evaluation", 2)]
    assert tracker.rows == [*first, ("trainer", 3), ("evaluation", 4)]
    assert tracker.endings == ["Stopped"]


def test_a_run_that_goes_on_is_left_open_and_another_project_begins_anew(run: Path) -> None:
    alive(run)
    tracker = Listed()
    assert [export(run, "wandb", "math", follow=False, tracker=tracker)[0] for _ in range(2)] == [4, 0]
    assert tracker.endings == [None, None]
    assert export(run, "wandb", "other", follow=False, tracker=Listed())[0] == 4
    assert (run / "tracking").stat().st_mode & 0o077 == 0


def test_what_failed_is_sent_again_and_told_in_one_line(run: Path) -> None:
    def fail() -> None:
        raise RuntimeError("503 from https://me:hunter2hunter2@host/api\nTraceback")

    tracker = Listed(fail)
    with pytest.raises(InfraError) as told:
        export(run, "mlflow", "math", follow=False, tracker=tracker)
    assert told.value.message == "mlflow: 503 from https://me:[removed]@host/api"
    assert "MLFLOW_TRACKING_URI" in told.value.fix
    assert tracker.endings == [None]
    assert export(run, "mlflow", "math", follow=False, tracker=Listed())[0] == 4


@pytest.mark.parametrize("tracker", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_named_with_its_command(
    run: Path, tracker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    assert guarded(lambda: app(["export", str(run), "--to", tracker])) == 64
    assert f"fix: `pip install {tracker}`" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--to", "wandb", "--low", "1"], ["--follow"], ["--project", "math"]])
def test_options_of_samples_and_of_trackers_are_not_mixed(run: Path, options: list[str]) -> None:
    assert guarded(lambda: app(["export", str(run), *options])) == 64
