"""Commands on a run that lies on a cluster: what they read comes first, then they do what they do with a run here."""

from __future__ import annotations

import json
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import areal
import pytest
from areal.cli.main import app, guarded
from areal.errors import ConfigError, ExitCode, InfraError
from areal_operator.job_handle import ClusterRun
from areal_operator.submit import fetch
from areal_operator.submit.fetch import LEFT_OUT, receive
from submit_parts import GIVER, running

TELLER = resources.files("areal_operator.submit").joinpath("tail.py").read_text()
FOUND = {"metadata": {"name": "digits", "namespace": "team", "uid": "0123456789"}}
ALWAYS = {"resolved.json", "summary.json", "live.json", "metrics.jsonl", "evaluations.jsonl", "evidence", "report.html"}


class OneJob:
    """A cluster with the job."""

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return FOUND


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run's directory on a volume, which the commands read through the program of the pod."""
    root = tmp_path / "volume"
    for path, content in {
        "resolved.json": b"{}",
        "token": b"secret",
        "logs/trainer.log": b"2026-11-27 10:00:00 info    trainer   step 1\n",
        "logs/worker-0.log": b"2026-11-27 10:00:01 info    worker-0  an episode\n",
        "checkpoints/s1/rank-0": b"state",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)

    def pull(found: Any, cluster: Any, parts: Any, target: Path, say: Any) -> int:
        with running(GIVER, str(root), LEFT_OUT, *parts) as channel:
            return receive(channel, target, say)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("areal_operator.job_commands.find_job", lambda name, *where, **kept: (OneJob(), FOUND))
    monkeypatch.setattr("areal_operator.job_handle.find_job", lambda name, *where, **kept: (OneJob(), FOUND))
    monkeypatch.setattr(fetch, "pull", pull)
    return root


def test_logs_of_a_job_on_a_cluster_come_and_are_printed(volume, tmp_path, capsys):
    assert guarded(lambda: app(["logs", "rljob/digits", "--role", "trainer"])) == ExitCode.DONE
    told = capsys.readouterr()
    assert "step 1" in told.out
    assert "an episode" not in told.out
    assert "2 of 2 files" not in told.out, "what came is no answer"
    here = tmp_path / "runs" / "rljob" / "team.digits.01234567"
    assert {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()} == {
        "resolved.json", "logs/trainer.log", "logs/worker-0.log"
    }  # fmt: skip
    (volume / "logs" / "trainer.log").write_bytes(b"2026-11-27 10:00:02 info    trainer   step 2\n")
    assert guarded(lambda: app(["logs", "rljob/digits"])) == ExitCode.DONE
    assert "step 2" in capsys.readouterr().out, "asked again, it is the newest"


def test_logs_of_a_job_are_followed_where_what_is_here_ends(volume, tmp_path, capsys, monkeypatch):
    from areal_operator.submit import fetch

    def follow(found: Any, cluster: Any, offsets: Any, say: Any) -> Any:
        assert offsets == {"trainer.log": 45, "worker-0.log": 49}
        (volume / "logs" / "worker-1.log").write_text("2026-11-27 10:00:05 info    worker-1  late\n")
        with running(TELLER, str(volume), json.dumps(offsets)) as channel:
            yield from islice(fetch.lines_of(channel), 1)  # of the other role, what came before is known
        raise InfraError("the pod is gone")

    monkeypatch.setattr(fetch, "follow", follow)
    assert guarded(lambda: app(["logs", "rljob/digits", "--role", "worker", "-f"])) == ExitCode.INFRA
    told = capsys.readouterr()
    assert [line.split()[-1] for line in told.out.splitlines()] == ["episode", "late"]
    assert "the pod is gone" in told.err


def test_what_logs_in_a_pod_is_told_once_and_links_are_not_read(volume):
    (volume / "logs" / "outside.log").symlink_to(volume / "token")
    with running(TELLER, str(volume), json.dumps({"trainer.log": 0, "worker-0.log": 1 << 30})) as channel:
        told = list(islice(fetch.lines_of(channel), 2))
        (volume / "logs" / "trainer.log").open("a").write("next\nhalf")
        told += islice(fetch.lines_of(channel), 1)
        (volume / "logs" / "trainer.log").open("a").write(" a line\nlost")
        (volume / "logs" / "trainer.log").rename(volume / "logs" / "trainer.log.1")
        (volume / "logs" / "trainer.log").write_text("as long as the part before it was, and longer than what it had\n")
        told += islice(fetch.lines_of(channel), 2)
        channel.process.stdin.close()
        assert channel.process.wait(timeout=60) == 0, "it ends with its input"
    assert [(role, text.split()[-1]) for role, text in told] == [
        ("trainer", "1"), ("worker-0", "episode"), ("trainer", "next"), ("trainer", "line"), ("trainer", "had")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["audit", "rljob/digits", "-n", "team"], {"journal"}),
        (["audit", "rljob/digits", "--tokens"], {"journal", "tokens"}),
        (["compare", "rljob/digits", "rljob/digits"], set()),
        (["report", "rljob/digits"], {"journal"}),
        (["why", "rljob/digits", "--slow"], {"journal"}),
        (["export", "rljob/digits"], {"recording", "trajectories"}),
    ],
)
def test_each_command_fetches_what_it_reads(volume, monkeypatch, command, parts):
    asked: list[set[str]] = []
    whole = fetch.pull
    monkeypatch.setattr(
        fetch, "pull", lambda found, cluster, parts, target, say: asked.append(set(parts)) or whole(
            found, cluster, parts, target, say
        )
    )  # fmt: skip
    guarded(lambda: app(command))  # what it makes of so bare a run is not looked at here
    assert asked
    assert all(each == ALWAYS | parts for each in asked)


def test_what_needs_the_run_itself_says_so(volume, capsys):
    assert guarded(lambda: app(["export", "rljob/digits", "--to", "wandb", "--follow"])) == ExitCode.CONFIG
    assert "--follow reads a run directory" in capsys.readouterr().err
    assert guarded(lambda: app(["why", "rljob/digits", "--bundle", "out.zip"])) == ExitCode.CONFIG
    assert "areal pull rljob/digits" in capsys.readouterr().err


def test_python_opens_a_job_on_a_cluster_as_a_run(volume, monkeypatch):
    asked: list[set[str]] = []
    whole = fetch.pull

    def pull(found: Any, cluster: Any, parts: Any, target: Path, say: Any) -> int:
        asked.append(set(parts))
        return whole(found, cluster, parts, target, say)

    monkeypatch.setattr(fetch, "pull", pull)
    run = areal.open("rljob/digits", namespace="team")
    assert run.directory.name == "team.digits.01234567"
    assert asked == [ALWAYS | {"journal", "logs", "recording", "trajectories"}]
    job = ClusterRun(OneJob(), FOUND)
    assert job.pull("model").directory == run.directory
    assert asked[1] == ALWAYS | {"model"}
    with pytest.raises(ConfigError, match="no run directory"):
        areal.open("runs/other")


def test_python_opens_what_a_job_that_is_gone_left(volume, monkeypatch):
    class Gone(OneJob):
        def get(self, kind: str, namespace: str, name: str) -> Any:
            return None

    asked: list[bool] = []
    monkeypatch.setattr(
        "areal_operator.job_handle.find_job", lambda name, *where, kept=False: asked.append(kept) or (Gone(), FOUND)
    )
    assert areal.open("rljob/digits", namespace="team").directory.name == "team.digits.01234567"
    assert asked == [True]
    with pytest.raises(InfraError, match="was deleted"):
        ClusterRun.named("digits", namespace="team").status()
