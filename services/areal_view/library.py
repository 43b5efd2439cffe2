"""Runs from Python: `areal.run(job, reward=function)` starts one in a process of its own, `areal.open` takes up any.

Owns the child process, and what is read from a run's directory while it goes on and afterwards. Blocks only in `wait`,
`watch` and `page`, and needs no event loop, so that all of it works in notebooks, in threads and under asyncio.
Importing this module imports the standard library only; pandas is used where it is installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    from areal.observe.live import Diagnosis

    from areal_view.index.record_index import RecordIndex
    from areal_view.job_files import Job, Overrides, Rows

OPENED = ("journal", "logs", "recording", "trajectories")  # parts of a job's run that come from a cluster
_LAST_WORDS = 4000  # characters of what a run that failed has said
_LOOK_S = 0.3  # between two looks at a run


class Table(list[dict[str, Any]]):
    """Rows as dictionaries; `pandas.DataFrame(table)` takes it as it is.

    >>> run.metrics().column("reward_mean")[-1]
    >>> run.metrics().frame().plot("step", "reward_mean")
    """

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order in which rows first have them."""
        return list(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> list[Any]:
        """One column; None where a row has no value."""
        return [row.get(name) for row in self]

    def frame(self) -> pandas.DataFrame:
        """The table as a data frame. Raises ConfigError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            from areal.errors import ConfigError

            raise ConfigError(
                "pandas is not installed", fix="pip install pandas, or use the rows as they are"
            ) from None
        return pandas.DataFrame(list(self))


class Run:
    """A run: going on or ended, started here by `areal.run` or anywhere else and taken up by `areal.open`.

    A run is a process of its own. Neither a handle that is forgotten nor a Python that ends stops it:
    `areal.open(directory)` takes it up again, and `areal run … --resume` goes on with one that stopped.
    """

    def __init__(self, directory: Path, child: _Child | None = None) -> None:
        self.directory = directory
        self._child = child
        self._address = ""

    def __repr__(self) -> str:
        ended = "going on" if self.running else (self.summary() or {"status": "refused or cut off"})["status"]
        return f"<areal.Run {self.directory}: {ended}>"

    # ---- the process

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        if self._child is not None:
            return self._child.process.poll() is None
        from areal.local.kept import is_held

        return is_held(self.directory)

    @property
    def output(self) -> str:
        """What `areal run` printed so far, of a run that was started here; of others nothing."""
        return self._child.output.read_text(errors="replace") if self._child is not None else ""

    def stop(self) -> None:
        """Stop cleanly, as Ctrl-C does: the trainer writes a checkpoint. `wait` for the end; twice kills at once."""
        if self._child is not None and self.running:
            self._child.process.send_signal(signal.SIGINT)
        elif self._child is None and (live := self._live()) is not None and live.goes_on:
            with suppress(ProcessLookupError):
                os.kill(live.pid, signal.SIGINT)

    def wait(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Wait for the end; answers the summary.

        An interrupt (Ctrl-C, or a notebook's stop button) stops the run cleanly, as on the command line, and is raised
        once the run has ended; a second one kills it at once. In a coroutine: `await asyncio.to_thread(run.wait)`.

        Args:
            timeout_s: seconds to wait at the most; for ever unless given.

        Raises:
            ArealError: the run was refused or failed: the same message and fix as on the command line. Its class says
                whose fault it was: ConfigError, DataError, InfraError. Of a run that another process started the
                summary has the reason instead.
            TimeoutError: it goes on after `timeout_s`.
        """
        try:
            self._wait(timeout_s)
        except KeyboardInterrupt:
            try:
                self.stop()
                self._wait(None)
            except KeyboardInterrupt:
                self.stop()
            raise
        if self._child is not None:
            self._child.raise_failure()
        return self.summary()

    def _wait(self, timeout_s: float | None) -> None:
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the run in {self.directory} goes on")
            time.sleep(_LOOK_S)

    def watch(self, show: Callable[[str], object] | None = print) -> Watch:
        """Steps as they are trained, each a row as `metrics` has it, until the run ends; shows a line now and then.

        An interrupt, or leaving the loop, ends the watching only: the run goes on. As the last line of a notebook's
        cell it shows the run to its end.

        >>> for step in run.watch():
        ...     if step["reward_mean"] > 0.95:
        ...         run.stop()

        Args:
            show: gets the lines that `areal run` prints into a pipe; None shows nothing.

        Raises:
            ArealError: at the end, as `wait`.
        """
        return Watch(self._steps(show))

    def _steps(self, show: Callable[[str], object] | None) -> Iterator[dict[str, Any]]:
        from areal.local.display import LineSchedule
        from areal.record.run_rows import JsonLines

        rows, lines, newest, going = JsonLines(self.directory / "metrics.jsonl"), LineSchedule(), -1, True
        while going:
            going = self.running  # asked before the rows are read: what came before the end isn't missed
            for row in rows.new():
                if row.get("step", -1) > newest:  # a step that is trained again after a restart was told
                    newest = row["step"]
                    yield _flat(row)
            if show is not None and (text := self._line(lines)):
                show(text)
            time.sleep(_LOOK_S if going else 0)
        self.wait()

    def _line(self, lines: Any) -> str | None:
        from areal.errors import ConfigError
        from areal.local.inspect import look

        try:
            return lines.due(look(self.directory), time.monotonic())  # type: ignore[no-any-return]
        except ConfigError:  # not yet, or not any more
            return None

    # ---- what it has left so far

    def metrics(self) -> Table:
        """A row a trained step: every figure of metrics.jsonl; seconds of a phase as `seconds.<phase>`, figures of
        one's own as `figures.<name>`.

        Of a step that was trained again after a restart the newest row counts.
        """
        return self._rows("metrics.jsonl", "step")

    def evaluations(self) -> Table:
        """A row an evaluated version: `version`, `mean` (an accuracy, or a loss where `metric` says so), `rows`, and of
        sampled answers `avg@n`, `pass@k`.
        """
        return self._rows("evaluations.jsonl", "version")

    def _rows(self, file: str, key: str) -> Table:
        from areal.record.run_rows import JsonLines

        rows = {row[key]: row for row in JsonLines(self.directory / file).new() if key in row}
        return Table(_flat(rows[place]) for place in sorted(rows))

    def samples(
        self, *, outcome: str | None = None, low: float | None = None, high: float | None = None, limit: int = 1_000
    ) -> Table:
        """A row a recorded sample, the newest first.

        `prompt` and `text` are what was fed and what the model answered, special tokens included (of several sequences
        the first's), `answer` the row's own where it has one, `reward` the score, `figures.<name>` its parts.
        `sequences` has token ids and log-probabilities, `verdict` the verifier's words.

        >>> run.samples(high=0.0, limit=20).frame()[["prompt", "text", "answer"]]

        Args:
            outcome: only those that ended so: complete, truncated, deadline, rejected, exception, hang, infra.
            low: only those with this reward or more.
            high: only those with this reward or less.
            limit: at most so many.
        """
        from areal_view.index.forms import samples
        from areal_view.index.sample_text import texts_of

        found, expected = Table(), self._expected()
        with self.index() as index:
            for row in index.find(outcome=outcome, low=low, high=high, limit=limit):
                for one in samples(index, [row]):
                    made = index.sample(row.place)
                    prompt, text = texts_of(made) if made is not None else (b"", b"")
                    figures = _flat({"figures": one["verdict"]["figures"]})
                    texts = {"prompt": prompt.decode("utf-8", "replace"), "text": text.decode("utf-8", "replace")}
                    found.append({**texts, "answer": expected(row.group), **one, **figures})
        return found

    def _expected(self) -> Callable[[int], Any]:
        """Expected answer of a group; None where rows have none, or the order of rows is decided on the way."""
        from areal.data import Snapshot
        from areal.errors import ArealError
        from areal.plan import ResolvedJob

        try:
            resolved = ResolvedJob.load(self.directory)
            rows = Snapshot(resolved.layout.dataset / "train")
        except ArealError:
            return lambda group: None
        spec = resolved.spec
        if spec.dataset.pools is not None:
            return lambda group: None
        order = rows.order(spec.seed)
        return lambda group: rows.row(order.row(group)).get("answer")

    def config(self) -> dict[str, Any]:
        """Every field of the job by its dotted path, with every default in place."""
        from areal.plan.resolved import ResolvedJob
        from areal.spec.locate import spec_fields

        return spec_fields(ResolvedJob.load(self.directory).job)

    def summary(self) -> dict[str, Any] | None:
        """The run's summary.json: `status`, `steps`, `heldOut`, `wallSeconds` and more; None while it goes on."""
        from areal.record import summary

        return None if self.running else summary.read(self.directory / "summary.json")

    def why(self) -> Diagnosis | None:
        """Cause for which the run waits, as `areal why` says it: `sentence` and `fix` are for people, `cause` for
        programs. None for a run that never said anything.
        """
        from areal.observe.causes import why

        live = self._live()
        return why(live) if live is not None else None

    def logs(self, *roles: str, since: str | None = None) -> list[str]:
        """Lines that roles logged, in the order of time: of all, or of those named ("trainer", "worker", "worker-0").

        Args:
            since: only from so long ago on: "90s", "10m", "2h".

        Raises:
            ConfigError: nothing is logged yet, or no role has that name.
        """
        from areal.local import log_stream

        files = log_stream.log_files(self.directory / "logs", roles)
        from_when = log_stream.since(since, time.time()) if since is not None else 0.0
        return [
            line.text if len(roles) == 1 else f"{line.role} {line.text}" for line in log_stream.merged(files, from_when)
        ]

    def page(self) -> str:
        """Address of the run's web page on this machine, with its key; served by this Python until it ends.

        Raises ConfigError when the extra `view` is not installed.
        """
        from areal_view.pages.main import serve

        told: SimpleQueue[str | Exception] = SimpleQueue()

        def serving() -> None:
            try:
                serve([self.directory], 0, told.put)
            except Exception as error:  # raised by who waits for the address
                told.put(error)

        if not self._address:
            threading.Thread(target=serving, name="areal page", daemon=True).start()
            answer = told.get()
            if isinstance(answer, Exception):
                raise answer
            self._address = answer
        return self._address

    @contextmanager
    def index(self) -> Iterator[RecordIndex]:
        """The recording, indexed to its end; use as a context manager."""
        from areal.plan.layout import RunLayout

        from areal_view.index.record_index import RecordIndex

        layout = RunLayout(self.directory)
        with tempfile.TemporaryDirectory(prefix="areal-index-") as cache:
            index = RecordIndex(Path(cache) / "index.sqlite", [layout.trajectories, layout.recording])
            try:
                index.refresh()
                while index.behind:
                    time.sleep(0.02)
                yield index.refresh()
            finally:
                index.close()

    def _live(self) -> Any:
        from areal.observe.live import read_live
        from areal.plan.layout import RunLayout

        return read_live(RunLayout(self.directory).live)


class Watch(Iterator[dict[str, Any]]):
    """Iterator of a run's steps; a notebook that displays it follows the run to its end."""

    def __init__(self, steps: Iterator[dict[str, Any]]) -> None:
        self._steps = steps

    def __next__(self) -> dict[str, Any]:
        return next(self._steps)

    def _ipython_display_(self) -> None:
        for _ in self:
            pass


class _Child:
    """The process of `areal run`, its output and how it failed. Its files go with the handle, the process stays."""

    def __init__(self, command: Sequence[str]) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="areal-run-")
        self.output, self._error = Path(self._files.name) / "output", Path(self._files.name) / "error.json"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "AREAL_ERROR_FILE": str(self._error)},
            )

    def raise_failure(self) -> None:
        """Raise what ended it, unless it is complete or was stopped."""
        from areal.errors import BugError, ExitCode
        from areal.processes.exits import read_error

        code = self.process.wait()
        if code in (ExitCode.DONE, ExitCode.DRAINED):
            return
        if (told := read_error(self._error)) is not None:
            raise told
        said = self.output.read_text(errors="replace").strip()[-_LAST_WORDS:]  # it was killed
        raise BugError(said or f"`areal run` ended with {code}")


def run(
    job: Job,
    overrides: Overrides = (),
    *,
    reward: Callable[..., Any] | None = None,
    workflow: str | type | None = None,
    hooks: str | os.PathLike[str] | Sequence[Callable[..., Any]] | None = None,
    rows: Rows | None = None,
    held_out: Rows | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    fresh: bool = False,
    wait: bool = False,
) -> Run:
    """Start a run on this machine, as `areal run` does; answers at once.

    >>> def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    ...     return float(completions.strip() == answer)
    >>> run = areal.run("job.yaml", "algorithm.maxSteps=20", reward=reward)

    Functions, dict and rows are written beside the run directory, into `<run directory>.job/`: a job file, a recipe and
    rows, from which the same job runs in a shell. A function travels as its source with what it uses: functions and
    classes of one's own, imports, and plain values, those around a closure too. What can't is refused by its name.

    Args:
        job: a job file, or a dict with the same fields; a dict without `spec` is the spec, with the job's `name` in it.
        overrides: fields to override: "field=value", several of them, or a dict by dotted field.
        reward: the recipe's `reward(prompt, completions, prompt_ids, completion_ids, **row)`.
        workflow: name of a built-in workflow, or a RolloutWorkflow.
        hooks: a file, or functions named compute_advantages and compute_loss; they may import torch.
        rows: training rows: dicts, a `datasets.Dataset` or a data frame, in place of `dataset.train`.
        held_out: likewise for `dataset.evaluation`.
        run_dir: where the run lives; runs/<name> unless given.
        resume: go on from the last checkpoint there.
        fresh: start anew; an earlier run there is moved aside.
        wait: wait for the end, as `Run.wait` does.

    Raises:
        ConfigError: the job or what it is given can't be read or has wrong fields. What a look at models and rows finds
            later is raised by `Run.wait` and `Run.watch`.
        DataError: a row can't be written.
    """
    from areal.errors import ConfigError
    from areal.local.kept import is_held
    from areal.spec.load import job_from

    from areal_view.job_files import JobFiles, JobParts

    files = JobFiles.of(job, overrides)
    directory = (Path(run_dir) if run_dir is not None else Path("runs") / (files.name or "run")).absolute()
    if is_held(directory):  # its files would be written over
        raise ConfigError(f"{directory} is in use by another run", fix="stop it, or name another run_dir")
    parts = JobParts(reward, workflow, hooks, rows, held_out)
    files = files.written(parts, directory.with_name(f"{directory.name}.job"))
    job_from(files.document, files.overrides)
    command = [sys.executable, "-m", "areal.cli.main", "run", str(files.document.path), *files.overrides]
    command += ["--run-dir", str(directory), *(["--resume"] if resume else []), *(["--fresh"] if fresh else [])]
    started = Run(directory, _Child(command))
    if wait:
        started.wait()
    return started


def open_run(directory: str | os.PathLike[str], *, namespace: str | None = None) -> Run:
    """A run that goes on or has ended, by its directory, whoever started it; or a job's on a cluster, which comes here
    first: figures, journal, logs and samples.

    >>> areal.open("runs/digits").metrics().frame()
    >>> areal.open("rljob/digits", namespace="team").metrics().frame()
    >>> areal.open("s3://models/rl/team/digits-1f3a9c02").summary()

    Args:
        directory: of a run, rljob/NAME also when only its claim is left, or a run's address in an object store.
        namespace: of the job; the kubeconfig's context has it unless given.

    Raises ConfigError when it is no run's directory, InfraError when the cluster can't be reached.
    """
    from areal.errors import ConfigError
    from areal.object_store import store_address

    if str(directory).startswith("rljob/"):
        from areal import ClusterRun  # what clusters need is loaded for them alone

        return ClusterRun.named(str(directory).removeprefix("rljob/"), namespace=namespace).pull()
    if address := store_address(directory):
        from areal.record import archive

        directory = archive.fetched(address, OPENED, lambda text: None)
    root = Path(directory).absolute()
    if not (root / "resolved.json").is_file():
        raise ConfigError(f"{directory} is no run directory", fix="name one that `areal run` made, like runs/digits")
    return Run(root)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        found.update(
            {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return found
