"""Runs from Python: `areal.run("job.yaml")` starts one in a process of its own, so it works in notebooks too.

Owns the child process and what is read from its directory. Importing this module imports the standard library
and `run_files` only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from areal_view.run_files import RunFiles

_LAST_WORDS = 4000  # characters of what a run that failed has said


class Run(RunFiles):
    """A run of a job, going on or ended. Made by `areal.run`."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        super().__init__(directory)
        self._process = process
        self._output = output

    @property
    def pid(self) -> int:
        """Of the process that supervises the run."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """Output of `areal run` so far."""
        return Path(self._output.name).read_text(errors="replace")

    def summary(self) -> dict[str, Any] | None:
        """The run's summary.json; None while it goes on."""
        return None if self.running else super().summary()

    def stop(self) -> None:
        """Stop cleanly: the trainer writes a checkpoint. `wait` for the end."""
        if self.running:
            self._process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Wait for the end; returns the summary.

        Raises:
            ArealError: the run was refused or failed; the class says whose fault it was, the message why.
            TimeoutError: it goes on after `timeout_s`.
        """
        from areal.errors import ExitCode, Kind, by_kind

        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the run in {self.directory} goes on") from None
        kinds = {ExitCode.CONFIG: Kind.CONFIG, ExitCode.DATA: Kind.DATA, ExitCode.INFRA: Kind.INFRA}
        if code not in (ExitCode.DONE, ExitCode.DRAINED):
            kind = next((kind for exit_code, kind in kinds.items() if code == exit_code), Kind.BUG)
            raise by_kind(kind, self.output.strip()[-_LAST_WORDS:] or f"exit code {code}")
        return self.summary()


def run(
    job: str | os.PathLike[str],
    *overrides: str,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    fresh: bool = False,
) -> Run:
    """Start `areal run` on a job file; returns at once.

    Args:
        overrides: fields to override, for example "algorithm.maxSteps=20".
        run_dir: where the run lives; runs/<name> unless given.
        resume: go on from the last checkpoint there.
        fresh: start anew; an earlier run there is moved aside.

    Raises:
        ConfigError: the job file can't be read or has wrong fields. What is found later is raised by `Run.wait`.
    """
    from areal.spec import load_job

    loaded = load_job(Path(job), overrides)
    directory = Path(run_dir) if run_dir is not None else Path("runs") / loaded.metadata.name
    command = [*_command(job, overrides), "--run-dir", str(directory)]
    command += (["--resume"] if resume else []) + (["--fresh"] if fresh else [])
    output = tempfile.NamedTemporaryFile(prefix="areal-run-", suffix=".log")  # noqa: SIM115 (the Run keeps it)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )
    return Run(directory.absolute(), process, output)


def _command(job: str | os.PathLike[str], overrides: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "areal.cli.main", "run", os.fspath(job), *overrides]
