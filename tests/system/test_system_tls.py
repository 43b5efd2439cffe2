"""A whole run whose roles speak TLS: certificates change under it, a worker dies meanwhile, and nothing is lost."""

from __future__ import annotations

import socket

import grpc
import pytest
from areal.plan.resolved import ResolvedJob
from areal.tls import ENV_TLS_DIR
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.certificates import authority, leaf, put
from support.job_run import VICTIMS

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(420)]


def test_certificates_change_under_a_run_that_loses_nothing_and_that_nobody_else_can_talk_to(
    start_job, tmp_path, monkeypatch
):
    old, new = authority(), authority()
    directory = put(tmp_path / "tls", leaf(old), old)
    monkeypatch.setenv(ENV_TLS_DIR, str(directory))
    run = start_job()
    run.wait_for("step 2", lambda: run.step() >= 2, 240)
    put(directory, leaf(old), old)
    run.kill(*VICTIMS["worker"])
    ends = ResolvedJob.load(run.run_dir).endpoints
    assert ends.redis is not None
    with grpc.insecure_channel(ends.controller) as plain, pytest.raises(grpc.RpcError) as refused:
        health_pb2_grpc.HealthStub(plain).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    with socket.create_connection(("127.0.0.1", int(ends.redis.rpartition(":")[2])), timeout=10) as plain_redis:
        plain_redis.sendall(b"PING\r\n")
        assert answer_of(plain_redis) == b""
    run.wait_for("step 8", lambda: run.step() >= 8, 240)
    put(directory, leaf(old), old, new)
    assert run.finish(timeout_s=240) == 0, run.output[-4000:]
    assert (run.summary()["status"], run.summary()["steps"]) == ("Complete", 24)
    audit = run.audit()
    assert (audit["lost"], audit["duplicated"]) == (0, 0)


def answer_of(connection: socket.socket) -> bytes:
    """What comes before it hangs up, politely or not."""
    try:
        return connection.recv(64)
    except ConnectionResetError:
        return b""
