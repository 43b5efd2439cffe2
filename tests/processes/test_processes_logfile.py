"""What is shown of a role's log when something went wrong."""

from __future__ import annotations

import os
from pathlib import Path

from areal.processes import logfile


def start(path: Path, text: str, *lines: str) -> None:
    descriptor = logfile.open_with_header(path, text)
    os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    os.close(descriptor)


def test_a_start_that_logged_nothing_leaves_the_words_of_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    start(log, "start 1 of worker-0", "old")
    start(log, "start 2 of worker-0", "", "ValueError: odd")
    assert logfile.last_words(log) == logfile.Excerpt(["ValueError: odd"])
    start(log, "start 3 of worker-0, after: killed by SIGKILL")
    told = logfile.last_words(log)
    assert told.lines == ["ValueError: odd"]
    assert told.start.endswith("start 2 of worker-0")
    assert logfile.tail(log) == [], "an exit is judged by its own start's lines"


def test_no_log_has_no_words(tmp_path: Path) -> None:
    assert logfile.last_words(tmp_path / "none.log") == logfile.Excerpt([])
    start(tmp_path / "mute.log", "start 1 of mute")
    assert logfile.last_words(tmp_path / "mute.log") == logfile.Excerpt([])
