"""The live file: it says what the roles said, since when one is silent, and whether the run is still there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import orjson
import pytest
from areal.launch.core import Phase
from areal.local.live_file import LiveFile
from areal.local.status import RoleState, RunView, Waiting
from areal.v1 import rollout_pb2 as rollout
from areal_view.why.live import read_live

VIEW = RunView(
    "digits",
    max_steps=160,
    max_staleness=2,
    elapsed_s=5.0,
    roles=[
        RoleState("redis", Phase.READY, pid=11),
        RoleState("trainer", Phase.READY, pid=12, answers=True, waits=[Waiting("groups", "group 3", 4.0, 60.0)]),
        RoleState("worker-0", Phase.READY, pid=13),
    ],
)


def test_a_role_that_does_not_answer_is_silent_since_it_last_did(tmp_path):
    now = [0.0]
    told = LiveFile(tmp_path / "live.json", {"trainer", "worker-0"}, lambda: now[0])
    told.show(VIEW)
    now[0] = 7.0
    told.show(VIEW)
    live = read_live(tmp_path / "live.json")
    assert live is not None
    assert {role.name: role.silent_s for role in live.roles} == {"redis": 0.0, "trainer": 0.0, "worker-0": 7.0}
    assert live.roles[1].waits[0].waits_for == "group 3"
    assert live.goes_on
    assert live.pid == os.getpid()


def test_a_process_that_was_ready_is_unready_since_it_last_was(tmp_path):
    now, told = [0.0], []
    file = LiveFile(tmp_path / "live.json", set(), lambda: now[0])
    for at, phase, pid in ((0.0, Phase.STARTING, 21), (2.0, Phase.READY, 21), (5.0, Phase.STARTING, 21),
                           (6.0, Phase.READY, 21), (9.0, Phase.STARTING, 22)):  # fmt: skip
        now[0] = at
        file.show(replace(VIEW, roles=[RoleState("generation-0", phase, pid=pid)]))
        live = read_live(tmp_path / "live.json")
        assert live is not None
        told.append(live.roles[0].unready_s)
    assert told == [None, None, 3.0, None, None]


def test_it_tells_since_when_a_reason_stands_whatever_its_numbers(tmp_path):
    now, told = [0.0], []
    file = LiveFile(tmp_path / "live.json", set(), lambda: now[0])
    for at, idle in ((0.0, ""), (2.0, "no generation server is ready (2)"), (5.0, "no generation server is ready (1)"),
                     (6.0, "the gate is closed"), (9.0, "")):  # fmt: skip
        now[0] = at
        file.show(replace(VIEW, rollout=rollout.GetRolloutStatusResponse(idle_reason=idle)))
        live = read_live(tmp_path / "live.json")
        assert live is not None
        told.append(live.idle_s)
    assert told == [0.0, 0.0, 3.0, 0.0, 0.0]


def test_the_end_is_told_with_the_last_words(tmp_path):
    told = LiveFile(tmp_path / "live.json", set())
    told.end()
    assert read_live(tmp_path / "live.json") is None
    told.show(VIEW)
    told.end()
    live = read_live(tmp_path / "live.json")
    assert live is not None
    assert live.ended
    assert not live.goes_on
    assert [role.name for role in live.roles] == ["redis", "trainer", "worker-0"]


def test_a_directory_that_cant_be_written_costs_nothing_else(tmp_path):
    LiveFile(tmp_path / "missing" / "live.json", set()).show(VIEW)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("found", [b"", b"{}", b'{"at": "x"}', b"\xff\xfe", b"[1, 2]"])
def test_a_file_that_is_none_is_no_live_file(tmp_path, found):
    (tmp_path / "live.json").write_bytes(found)
    assert read_live(tmp_path / "live.json") is None


def test_a_pid_that_another_process_has_now_is_not_the_run(tmp_path):
    LiveFile(tmp_path / "live.json", set()).show(VIEW)
    written = orjson.loads((tmp_path / "live.json").read_bytes())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "live.json").write_bytes(orjson.dumps({**written, "pid": child.pid}))
        live = read_live(tmp_path / "live.json")
        assert live is not None
        assert not live.alive
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
