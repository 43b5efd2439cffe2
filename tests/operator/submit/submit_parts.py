"""What the submit tests share: a job whose files are here, and a channel to the real receiver in a local process."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from areal.errors import InfraError
from areal.spec import RLJob, load_job
from support.tiny_job import make_model

JOB = """apiVersion: areal.dev/v1alpha1
kind: RLJob
metadata: {name: digits}
spec:
  model: {path: model}
  recipe: {file: recipe.py}
  dataset:
    train: {jsonl: train.jsonl}
  rollout: {maxConcurrentRollouts: 64, maxSampleTokens: 64, sampling: {maxNewTokens: 12}}
  algorithm: {name: GRPO, groupSize: 8, batchSize: 64, maxSteps: 160}
  optimizer: {learningRate: 1e-4}
"""
RECIPE = "# \U0001d70b\ndef reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1.0\n"
"""With a character that is two in UTF-16, as people's recipes have."""
GIVER = resources.files("areal_operator.submit").joinpath("give.py").read_text()
RECEIVER = resources.files("areal_operator.submit").joinpath("receive.py").read_text()


def write_job(folder: Path, extra: str = "") -> Path:
    """A job file with everything that it names beside it."""
    make_model(folder / "model")
    (folder / "model" / "shards").mkdir()
    (folder / "model" / "shards" / "one.safetensors").write_bytes(bytes(range(256)) * 4096)
    (folder / "model" / ".cache").mkdir()
    (folder / "model" / ".cache" / "lock").write_text("not to be sent")
    (folder / "train.jsonl").write_text('{"prompt": "1=", "answer": "2"}\n' * 100)
    (folder / "recipe.py").write_text(RECIPE)
    path = folder / "job.yaml"
    path.write_text(JOB + extra)
    return path


def job_in(folder: Path, *overrides: str) -> RLJob:
    path = folder / "job.yaml"
    return load_job(path if path.exists() else write_job(folder), overrides)


class LocalChannel:
    """A program as a process of this machine: what `PodChannel` is to one in a pod."""

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, "-c", program, *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        try:
            while data:
                data = data[self.process.stdin.write(data) :]
        except BrokenPipeError as error:
            raise InfraError("the connection to the pod broke") from error

    def line(self, timeout_s: float) -> bytes:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 60.0)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise InfraError("the program in the pod ended")
        return line.rstrip(b"\n")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@contextmanager
def receiving(root: Path) -> Iterator[LocalChannel]:
    with running(RECEIVER, str(root)) as channel:
        yield channel


@contextmanager
def running(program: str, *arguments: str) -> Iterator[LocalChannel]:
    channel = LocalChannel(program, *arguments)
    try:
        yield channel
    finally:
        channel.close()


@contextmanager
def quietly(what: str, size: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


def empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
