"""What the first process of a container owes it: environment, strangers' ends, last words, both outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from areal.errors import ConfigError
from areal.plan import RoleHost, RoleRow
from areal.plan.table import role_row
from areal.processes import exits, role
from areal.processes.logfile import Mirror
from areal.processes.main import _environment, parse, serve_metrics_for
from support.cluster_jobs import quickstart_wanted

STRANGERS = """
import asyncio, json, os, signal, subprocess, sys
from areal.processes.family import adopt
from areal.processes.main import collect_zombies

async def main():
    keepers = set()
    adopt()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, collect_zombies, keepers)
    mine = subprocess.Popen(["sh", "-c", "exit 7"])
    keepers.add(mine.pid)
    told = subprocess.run(["sh", "-c", "sh -c 'exit 3' & echo $!; sleep 0.2 & echo $!"], capture_output=True, text=True)
    strangers = [int(word) for word in told.stdout.split()]
    async with asyncio.timeout(60):
        while any(os.path.exists(f"/proc/{pid}") for pid in strangers):
            await asyncio.sleep(0.02)
    print(json.dumps({"strangers": len(strangers), "mine": mine.wait()}))

asyncio.run(main())
"""


def row(**env: str) -> RoleRow:
    return RoleRow("trainer-0", "trainer", 0, [], env, {}, [], "none", 1.0, 1.0, "epoch", 1)


@pytest.mark.component
def test_strangers_are_collected_and_ones_own_children_are_not():
    done = subprocess.run([sys.executable, "-c", STRANGERS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"strangers": 2, "mine": 7}


def test_the_container_chooses_all_but_who_the_role_is(tmp_path):
    defaults = row(OMP_NUM_THREADS="1", AREAL_ROLE="trainer", AREAL_RUN_DIR="/areal/run", HOME="/tmp")
    chosen = _environment(defaults, {"OMP_NUM_THREADS": "8", "AREAL_ROLE": "worker", "NCCL_DEBUG": "WARN", "HOME": "/"})
    assert chosen == {
        "OMP_NUM_THREADS": "8", "AREAL_ROLE": "trainer", "AREAL_RUN_DIR": "/areal/run", "NCCL_DEBUG": "WARN",
        "HOME": "/tmp",
    }  # fmt: skip
    assert _environment(defaults, {"HOME": str(tmp_path)})["HOME"] == str(tmp_path)
    assert _environment(defaults, {"HOME": "/nonexistent"})["HOME"] == "/tmp"


def test_a_pod_says_which_of_its_role_it_is(monkeypatch):
    monkeypatch.setenv("AREAL_INDEX", "3")
    asked = parse(["--job", "/areal/job/resolved.json", "--role", "worker", "--port", "9001"])
    assert (asked.role, asked.index, asked.port) == ("worker", 3, 9001)
    assert parse(["--job", "j", "--role", "worker", "--index", "0"]).index == 0
    monkeypatch.delenv("AREAL_INDEX")
    assert parse(["--job", "j", "--role", "controller"]).index == 0


def test_last_words_are_cut_where_kubernetes_cuts_them(tmp_path, monkeypatch):
    assert exits.leave_message("x" * 5000, tmp_path / "log")
    assert (tmp_path / "log").stat().st_size == exits.LIMIT_BYTES
    assert not exits.leave_message("x", tmp_path / "no" / "log")
    monkeypatch.setenv("AREAL_TERMINATION_LOG", str(tmp_path / "named"))
    assert exits.leave_message("said")
    assert (tmp_path / "named").read_text() == "said"


def test_a_tool_leaves_its_result_or_its_error(tmp_path, monkeypatch):
    monkeypatch.setenv("AREAL_TERMINATION_LOG", str(tmp_path / "log"))
    assert role.use(lambda job: "all is well", None) == 0
    assert (tmp_path / "log").read_text() == "all is well"

    def refuse(job: object) -> str:
        raise ConfigError("no model", fix="name one")

    with pytest.raises(ConfigError):
        role.use(refuse, None)
    assert (tmp_path / "log").read_text() == "no model\n  fix: name one"


def written(path: Path, log: int, chunks: list[bytes], limit_bytes: int = 1000) -> bytes:
    """What a container's log gets of `chunks`."""
    container = path.with_name("container")
    mirror = Mirror(path, log, os.open(container, os.O_WRONLY | os.O_CREAT), limit_bytes)
    with os.fdopen(mirror.write_end, "wb", buffering=0) as output:
        for chunk in chunks:
            output.write(chunk)
            while not container.read_bytes().endswith(chunk):
                os.sched_yield()
    mirror.finish()
    return container.read_bytes()


def test_a_volume_that_is_full_silences_the_log_file_only(tmp_path: Path):
    lines = [b"one\n", b"two\n", b"three\n"]
    assert written(tmp_path / "log", os.open("/dev/full", os.O_WRONLY), lines) == b"one\ntwo\nthree\n"


def test_a_log_file_never_grows_beyond_its_limit_twice(tmp_path: Path):
    log = tmp_path / "log"
    lines = [b"%03d" % number * 100 for number in range(10)]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    assert written(log, descriptor, lines) == b"".join(lines)
    assert log.read_bytes() == b"".join(lines[9:])
    assert (tmp_path / "log.1").read_bytes() == b"".join(lines[6:9])


def test_every_member_of_a_gang_answers_a_scrape() -> None:
    job = quickstart_wanted().resolved
    place = RoleHost.pod(Path("/areal/job/resolved.json"))
    first, second = (role_row(job, "trainer", index, place) for index in (0, 1))
    assert serve_metrics_for(first, job, "127.0.0.1") is None, "the first rank serves its own"
    port = serve_metrics_for(replace(second, ports={"metrics": 0}), job, "127.0.0.1")
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
    assert "process_resident_memory_bytes" in answer.text
