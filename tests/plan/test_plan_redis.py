"""The configuration makes a Redis that keeps data, refuses strangers, and never evicts."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest
import redis
from areal.admit.resolve import resolve
from areal.errors import ConfigError
from areal.plan import ResolvedJob, write_run
from areal.plan.redis_conf import redis_conf
from areal.spec import load_job


@pytest.fixture
def resolved(workspace) -> ResolvedJob:
    job = load_job(workspace.job_file, ["replay.budgetBytes=100Mi"])
    return write_run(resolve(job, run_dir=workspace.run_dir, base_dir=workspace.root), recipe=workspace.recipe)


def test_the_text_is_durable_bounded_and_local(resolved):
    lines = dict(line.split(" ", 1) for line in redis_conf(resolved).splitlines())
    assert lines["appendonly"] == "yes"
    assert lines["appendfsync"] == "everysec"
    assert lines["maxmemory-policy"] == "noeviction"
    assert int(lines["maxmemory"]) > resolved.spec.replay.budget_bytes
    assert (lines["bind"], lines["protected-mode"]) == ("127.0.0.1", "yes")
    assert lines["dir"] == f'"{resolved.layout.redis}"'


def test_a_directory_that_could_inject_a_setting_is_refused(resolved, tmp_path):
    bad = resolved.model_copy(update={"run_dir": tmp_path / "a\nappendonly no"})
    with pytest.raises(ConfigError, match="line break"):
        redis_conf(bad)
    quoted = redis_conf(resolved.model_copy(update={"run_dir": tmp_path / 'a"b\\c'}))
    assert '\\"b\\\\c' in quoted


@pytest.mark.component
def test_a_real_redis_takes_it(resolved):
    process = subprocess.Popen(
        ["redis-server", str(resolved.layout.redis_conf)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        port = resolved.ports["redis"]["main"]
        _wait_for(port, process)
        passwords = {user: path.read_text() for user, path in resolved.redis_users.items()}
        owner = redis.Redis(port=port, username="controller", password=passwords["controller"])
        worker = redis.Redis(port=port, username="worker", password=passwords["worker"])
        stranger = redis.Redis(port=port)
        tag = f"{{{resolved.uid}}}"
        assert owner.set(f"{tag}:meta", "1")
        assert worker.hset(f"{tag}:s:0", "0", "sample") == 1
        for refused in (
            lambda: stranger.ping(),
            lambda: worker.set(f"{tag}:meta", "2"),
            lambda: owner.config_set("appendonly", "no"),
            lambda: owner.flushall(),
        ):
            with pytest.raises((redis.exceptions.NoPermissionError, redis.exceptions.AuthenticationError)):
                refused()
        assert owner.info("persistence")["aof_enabled"] == 1
        assert (resolved.layout.redis / "appendonlydir").is_dir()
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"redis-server did not start: {process.stdout.read1().decode() if process.stdout else ''}")
