"""Log files of all roles become one stream in the order of time."""

from __future__ import annotations

import json
import os
import time

import pytest
from areal.cli.main import app
from areal.errors import ConfigError
from areal.local.log_stream import Follower, log_files, merged, since, stamp_of
from typer.testing import CliRunner

TRAINER = """════ 2026-03-01 12:00:00 trainer, start 1 ════
2026-03-01 12:00:02 info    trainer        step 0
Traceback (most recent call last):
  ValueError: no such row
2026-03-01 12:00:09 info    trainer        step 1
"""
ENGINE = """a banner without a time
[2026-03-01 12:00:01] server is up
2026-03-01 12:00:05 info    generation-0   loaded 1.f1
"""


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "trainer.log").write_text(TRAINER)
    (tmp_path / "generation-0.log").write_text(ENGINE)
    return tmp_path


def texts(lines):
    return [line.text for line in lines]


def test_lines_of_all_roles_come_by_time_and_what_has_none_stays_with_its_own(logs):
    lines = list(merged(log_files(logs)))
    assert sorted(texts(lines)) == sorted((TRAINER + ENGINE).splitlines())
    shown = texts(lines)
    assert shown.index("  ValueError: no such row") == shown.index("Traceback (most recent call last):") + 1
    assert shown.index("[2026-03-01 12:00:01] server is up") < shown.index(TRAINER.splitlines()[1])
    assert (
        shown.index(TRAINER.splitlines()[3])
        < shown.index(ENGINE.splitlines()[2])
        < shown.index(TRAINER.splitlines()[4])
    )


def test_a_role_is_chosen_by_its_name_or_that_of_its_kind(logs):
    assert list(log_files(logs, ["generation"])) == ["generation-0"]
    assert list(log_files(logs, ["trainer", "generation-0"])) == ["generation-0", "trainer"]
    with pytest.raises(ConfigError) as refused:
        log_files(logs, ["trainr"])
    assert "generation-0, trainer" in refused.value.fix


def test_the_command_prints_an_object_a_line_for_scripts(logs, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/resolved.json").touch()
    (tmp_path / "run/logs").symlink_to(logs)
    done = CliRunner().invoke(app, ["logs", str(tmp_path / "run"), "--role", "generation", "--json"])
    told = [json.loads(line) for line in done.output.splitlines()]
    assert [one["text"] for one in told] == ENGINE.splitlines()
    assert {one["role"] for one in told} == {"generation-0"}


def test_only_what_is_new_enough_is_shown(logs):
    moment = stamp_of("2026-03-01 12:00:05 x")
    assert moment is not None
    assert texts(merged(log_files(logs), moment)) == [ENGINE.splitlines()[2], TRAINER.splitlines()[4]]


def test_a_rotated_part_comes_first(logs):
    (logs / "trainer.log.1").write_text("2026-03-01 11:59:00 info    trainer        earlier\n")
    assert texts(merged(log_files(logs, ["trainer"])))[0].endswith("earlier")


def test_a_clock_that_goes_back_keeps_the_order_of_a_file(tmp_path):
    (tmp_path / "a.log").write_text("2026-03-01 12:00:05 one\n2026-03-01 12:00:01 two\n")
    assert [text[-3:] for text in texts(merged(log_files(tmp_path)))] == ["one", "two"]


@pytest.mark.parametrize(("age", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("1d", 86400)])
def test_an_age_is_a_number_and_a_unit(age, seconds):
    assert since(age, 1e6) == 1e6 - seconds


@pytest.mark.parametrize("age", ["", "ten", "10", "-3m", "1w"])
def test_what_is_no_age_is_refused_with_an_example(age):
    with pytest.raises(ConfigError) as refused:
        since(age, 0.0)
    assert "--since 10m" in refused.value.fix


def test_a_run_without_logs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no logs"):
        log_files(tmp_path)


def test_a_follower_sees_whole_lines_that_were_appended_and_goes_on_after_a_rotation(logs):
    follower = Follower(log_files(logs, ["trainer"]))
    assert follower.new() == []
    path = logs / "trainer.log"
    with path.open("a") as file:
        file.write("next\nhalf")
    assert follower.new() == [("trainer", "next")]
    with path.open("a") as file:
        file.write(" and half\n")
    assert follower.new() == [("trainer", "half and half")]
    path.replace(logs / "trainer.log.1")
    path.write_text("anew\n")
    assert follower.new() == [("trainer", "anew")]


def test_the_stamp_is_the_local_time_that_our_own_logs_write(monkeypatch):
    monkeypatch.setitem(os.environ, "TZ", "UTC-3")
    time.tzset()
    try:
        assert stamp_of("1970-01-01 03:00:10 info") == 10.0
        assert stamp_of("no time at all") is None
        assert stamp_of("2026-13-77 99:99:99") is None
    finally:
        monkeypatch.undo()
        time.tzset()
