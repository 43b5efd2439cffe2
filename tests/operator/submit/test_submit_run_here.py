"""Commands on a run that lies on a cluster: what they read comes first, then they do what they do with a run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import areal
import pytest
from areal.cli.main import app, guarded
from areal.errors import ConfigError, ExitCode
from areal_operator.job_handle import ClusterRun
from areal_operator.submit import fetch
from areal_operator.submit.fetch import LEFT_OUT, receive
from submit_parts import GIVER, running

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
    monkeypatch.setattr("areal_operator.job_commands.find_job", lambda name, *where: (OneJob(), FOUND))
    monkeypatch.setattr("areal_operator.job_handle.find_job", lambda name, *where: (OneJob(), FOUND))
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
    assert guarded(lambda: app(["logs", "rljob/digits", "-f"])) == ExitCode.CONFIG
    assert "kubectl logs -f" in capsys.readouterr().err


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
