"""Fetching a run: what comes is what was there, no secret leaves, nothing comes twice, and what broke off goes on."""

from __future__ import annotations

import base64
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from areal.cli.main import app, guarded
from areal.errors import ConfigError, DataError, ExitCode, InfraError
from areal_operator.submit import fetch
from areal_operator.submit.fetch import LEFT_OUT, receive
from submit_parts import GIVER, running

WEIGHTS = bytes(range(256)) * 1000  # several lines of base64


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    root = tmp_path / "volume"
    for path, content in {
        "resolved.json": b"{}",
        "metrics.jsonl": b'{"step": 0}\n' * 1000,
        "token": b"secret",
        "access/token.worker": b"secret",
        "redis/controller.password": b"secret",
        "model/model.safetensors": WEIGHTS,
        "model/config.json": b"{}",
        "model/.cache/lock": b"hidden",
        "model/empty.txt": b"",
        "logs/trainer.log": b"line\n",
        "checkpoints/s1/rank-0": b"state",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    (root / "model" / "outside").symlink_to("/etc/hostname")
    return root


def pulled(root: Path, target: Path, *parts: str) -> int:
    with running(GIVER, str(root), LEFT_OUT, *parts) as channel:
        return receive(channel, target, lambda text: None)


def below(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_all_of_a_run_comes_but_secrets_links_and_what_is_hidden(run_dir, tmp_path):
    target = tmp_path / "here"
    came = pulled(run_dir, target, ".")
    kept = {"token", "access/token.worker", "redis/controller.password", "model/.cache/lock", "model/outside"}
    assert below(target) == {path: content for path, content in below(run_dir).items() if path not in kept}
    assert came == len(below(target)) == 7


def test_parts_come_alone_and_one_that_is_not_there_is_no_error(run_dir, tmp_path):
    assert pulled(run_dir, tmp_path / "here", "metrics.jsonl", "exports") == 1
    assert set(below(tmp_path / "here")) == {"metrics.jsonl"}
    for secret in (
        "token",
        "access",
        "access/token.worker",
        "redis",
        "./redis",
        "logs/../token",
        "redis/controller.password",
    ):
        assert pulled(run_dir, tmp_path / "there", secret) == 0


def test_what_is_here_does_not_come_again_and_what_differs_does(run_dir, tmp_path):
    target = tmp_path / "here"
    pulled(run_dir, target, "model")
    assert pulled(run_dir, target, "model") == 0
    (target / "model" / "model.safetensors").write_bytes(b"x" * len(WEIGHTS))
    assert pulled(run_dir, target, "model") == 1
    assert (target / "model" / "model.safetensors").read_bytes() == WEIGHTS


class CutChannel:
    """Breaks off after some lines."""

    def __init__(self, channel: Any, lines: int) -> None:
        self._channel, self._lines = channel, lines
        self.write = channel.write

    def line(self, timeout_s: float) -> bytes:
        self._lines -= 1
        if self._lines < 0:
            raise InfraError("the connection to the pod broke")
        return self._channel.line(timeout_s)


def test_a_file_that_broke_off_goes_on_where_it_was_and_never_stands_half(run_dir, tmp_path):
    target = tmp_path / "here"
    with running(GIVER, str(run_dir), LEFT_OUT, "model/model.safetensors") as channel:
        with pytest.raises(InfraError, match="broke"):
            receive(CutChannel(channel, 3), target, lambda text: None)
        channel.process.kill()
    (part,) = (target / "model").iterdir()
    assert part.name == ".areal-part-model.safetensors"
    had = part.stat().st_size
    assert 0 < had < len(WEIGHTS)
    lines: list[bytes] = []
    with running(GIVER, str(run_dir), LEFT_OUT, "model/model.safetensors") as channel:
        read = channel.line
        channel.line = lambda timeout_s: lines.append(read(timeout_s)) or lines[-1]  # type: ignore[method-assign]
        assert receive(channel, target, lambda text: None) == 1
    assert sum(len(base64.b64decode(line)) for line in lines[1:-1]) == len(WEIGHTS) - had
    assert below(target) == {"model/model.safetensors": WEIGHTS}


def test_what_a_broken_file_began_with_is_not_trusted(run_dir, tmp_path):
    part = tmp_path / "here" / "model" / ".areal-part-model.safetensors"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"of another run")
    with pytest.raises(DataError, match=r"model\.safetensors did not arrive as digested"):
        pulled(run_dir, tmp_path / "here", "model/model.safetensors")
    assert pulled(run_dir, tmp_path / "here", "model/model.safetensors") == 1
    part.write_bytes(b"x" * (len(WEIGHTS) + 1))  # longer than the file
    (tmp_path / "here" / "model" / "model.safetensors").unlink()
    assert pulled(run_dir, tmp_path / "here", "model/model.safetensors") == 1


def test_a_file_that_grows_meanwhile_comes_as_it_was_listed(run_dir, tmp_path):
    metrics = run_dir / "metrics.jsonl"
    was = metrics.read_bytes()
    with running(GIVER, str(run_dir), LEFT_OUT, "metrics.jsonl") as channel:
        first = channel.line(60)
        metrics.write_bytes(was + b"more\n")
        read = channel.line
        told = iter([first])
        channel.line = lambda timeout_s: next(told, None) or read(timeout_s)  # type: ignore[method-assign]
        assert receive(channel, tmp_path / "here", lambda text: None) == 1
    assert (tmp_path / "here" / "metrics.jsonl").read_bytes() == was


def test_a_pod_that_offers_a_place_outside_is_refused_before_anything_is_written(tmp_path):
    class Offers:
        def __init__(self, path: str) -> None:
            self.path = path

        def write(self, data: bytes) -> None:
            raise AssertionError("nothing may be asked for")

        def line(self, timeout_s: float) -> bytes:
            return json.dumps([{"path": self.path, "size": 1, "sha256": "0"}]).encode()

    for path in ("../escape", "/etc/passwd", "a/../../b"):
        with pytest.raises(DataError, match="outside of the run"):
            receive(Offers(path), tmp_path / "here", lambda text: None)
    assert not (tmp_path / "here").exists()


def test_what_goes_wrong_in_the_pod_is_said(run_dir, tmp_path):
    os.truncate(run_dir / "metrics.jsonl", 0)
    with running(GIVER, str(run_dir), LEFT_OUT, "model/model.safetensors", "metrics.jsonl") as channel:
        first = channel.line(60)
        (run_dir / "model" / "model.safetensors").unlink()
        read, told = channel.line, iter([first])
        channel.line = lambda timeout_s: next(told, None) or read(timeout_s)  # type: ignore[method-assign]
        with pytest.raises(InfraError, match=r"broke off.*No such file"):
            receive(channel, tmp_path / "here", lambda text: None)
    assert not (tmp_path / "here" / "model" / "model.safetensors").exists()


def test_the_command_asks_for_the_parts_that_it_is_told(tmp_path, monkeypatch, capsys):
    asked: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "areal_operator.job_commands.find_job", lambda name, *where, **kept: ("cluster", {"name": name})
    )
    monkeypatch.setattr(fetch, "pull", lambda found, cluster, parts, target, say: asked.append((parts, target)) or 3)
    assert guarded(lambda: app(["pull", "rljob/digits"])) == ExitCode.DONE
    assert "3 files came; runs/digits is the run here" in capsys.readouterr().out
    guarded(lambda: app(["pull", "rljob/digits", "--model", "--exports", "--out", "there"]))
    guarded(lambda: app(["pull", "rljob/digits", "--all"]))
    guarded(lambda: app(["pull", "rljob/digits", "--recording"]))
    assert {"resolved.json", "metrics.jsonl", "evidence", "journal", "logs", "model"} <= set(asked[0][0])
    assert asked[1:] == [
        (["model", "exports"], Path("there")),
        (["."], Path("runs/digits")),
        (["recording", "trajectories", "resolved.json"], Path("runs/digits")),
    ]
    assert guarded(lambda: app(["pull", "runs/digits"])) == ExitCode.CONFIG
    assert "write rljob/digits" in capsys.readouterr().err


class Pods(list[str]):
    """A cluster whose pods run at once: the names of those that were made."""

    def create(self, pod: Any) -> None:
        self.append(pod["metadata"]["name"])

    def delete(self, pod: Any) -> None:
        """Nothing is there."""

    def until(self, *asked: Any, **limits: Any) -> bool:
        return True


def test_a_pod_of_the_command_s_own_reads_the_run(run_dir, tmp_path, monkeypatch):
    made = Pods()
    pod = {"metadata": {"name": "digits-view-1", "namespace": "team"}}
    monkeypatch.setattr(fetch, "pod_of", lambda found, cluster: pod)

    @contextmanager
    def program(namespace: str, pod: str, container: str, command: list[str]) -> Any:
        assert (namespace, pod, container, command[:2]) == ("team", "digits-view-1", "main", ["python3", "-c"])
        assert command[3] == "/areal/run/digits"
        with running(command[2], str(run_dir), *command[4:]) as channel:
            yield channel

    found = {"metadata": {"name": "digits", "namespace": "team", "uid": "u"}}
    assert fetch.pull(found, made, ["model"], tmp_path / "here", lambda text: None, program) == 3
    assert fetch.pull(found, made, ["model"], tmp_path / "here", lambda text: None, program) == 0
    assert made == ["digits-view-1"] * 2
    log = (run_dir / "logs" / "trainer.log").read_text().splitlines()
    lines = fetch.follow(found, made, {}, lambda text: None, program)
    assert [next(lines)] == [("trainer", log[0])]
    lines.close()
    assert made.pop() == "digits-view-1", "a pod of its own tells what is logged"
    another = {"metadata": {**found["metadata"], "uid": "of-a-job-made-anew"}}
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "metrics.jsonl").write_text("of this machine")
    for job, target in ((another, "here"), (found, "local")):
        with pytest.raises(ConfigError, match=f"{target} holds something else"):
            fetch.pull(job, made, ["."], tmp_path / target, lambda text: None, program)
    assert (tmp_path / "local" / "metrics.jsonl").read_text() == "of this machine"
    assert len(made) == 2, "no pod was made for it"
