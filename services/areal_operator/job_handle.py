"""Jobs on a cluster from Python: `areal.submit` puts one there as the command does, and answers a handle.

The handle has the names of `areal.Run` as far as a cluster has what they tell: steps, samples and logs are on the job's
volume, from which `pull` makes a run on this machine.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal.errors import ExitCode, InfraError, Kind, by_kind
from areal.observe.live import Diagnosis
from areal.spec.status import JobStatus
from areal_view.job_files import Job, JobFiles, JobParts, Overrides
from areal_view.library import OPENED, Run, Watch, open_run
from areal_view.why.job_causes import why_job

from areal_operator.commands import checked_request, no_progress
from areal_operator.job_commands import facts_of, find_job
from areal_operator.submit.cluster import Cluster, connect
from areal_operator.submit.fetch import pull_beside
from areal_operator.submit.follow import ended, line
from areal_operator.submit.manifests import MANAGER, Json
from areal_operator.submit.page import page_of
from areal_operator.submit.submit import submit as submit_objects

_LOOK_S = 1.0
_KINDS = {ExitCode.CONFIG: Kind.CONFIG, ExitCode.DATA: Kind.DATA, ExitCode.INFRA: Kind.INFRA}


class ClusterRun:
    """A job on a cluster, made by `areal.submit`. It goes on whatever becomes of the handle."""

    def __init__(self, cluster: Cluster, job: Json) -> None:
        self._cluster, self._job = cluster, job
        self._uid = job["metadata"]["uid"]
        self.name: str = job["metadata"]["name"]
        self.namespace: str = job["metadata"]["namespace"]

    @classmethod
    def named(
        cls,
        name: str,
        *,
        namespace: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
    ) -> "ClusterRun":
        """A job that is on a cluster already, or its claim alone, which `pull` reads; where, as of `areal.submit`.

        Raises ConfigError for neither, InfraError.
        """
        where = None if kubeconfig is None else Path(kubeconfig)
        return cls(*find_job(name, namespace, where, context, kept=True))

    def __repr__(self) -> str:
        return (
            f"<areal.ClusterRun rljob/{self.name} in {self.namespace}: {self.status().summary or 'not looked at yet'}>"
        )

    @property
    def running(self) -> bool:
        """Whether it has not ended yet; a suspended job has not."""
        return self._ending(self._found()) is None

    def status(self) -> JobStatus:
        """What the operator says of it: `progress`, `roles`, `conditions`, `failures` and more."""
        return _status(self._found())

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until it is complete. An interrupt ends the waiting only.

        Raises:
            ArealError: it failed, was refused or deleted; the message has the reason.
            TimeoutError: it goes on after `timeout_s` seconds.
        """
        return deque(self._looks(timeout_s), 1)[0]

    def watch(self, show: Callable[[str], object] | None = print) -> Watch:
        """Steps as the operator sees them, each `{"step", "max_steps", "policy_version", "reward"}`, until it ends;
        `show` gets the line that `areal submit --wait` shows, when it changes. Raises as `wait`.
        """
        return Watch(self._steps(show))

    def stop(self) -> None:
        """Suspend it: the trainer writes a checkpoint, pods go, volumes stay. `kubectl patch` of suspend goes on."""
        self._cluster.merge("RLJob", self.namespace, self.name, {"spec": {"suspend": True}}, manager=MANAGER)

    def why(self) -> Diagnosis:
        """Cause for which nothing is trained now, as `areal why rljob/NAME` says it."""
        return why_job(facts_of(self._cluster, self._found(), time.time()))

    def pull(self, *parts: str) -> Run:
        """Its run on this machine, as `areal.open("rljob/NAME")` has it: figures, journal, logs and samples come, or
        these parts instead, such as "model". What is here is not fetched again.

        >>> job.pull().summary()
        """
        return open_run(pull_beside(self._job, self._cluster, parts or OPENED, lambda text: None))

    def page(self) -> AbstractContextManager[str]:
        """Address of the job's page on this machine, while entered.

        >>> with job.page() as address:
        ...     input(address)
        """
        return page_of(self._found(), self._cluster, 0, lambda text: None)

    def _steps(self, show: Callable[[str], object] | None) -> Iterator[dict[str, Any]]:
        said, newest = "", -1
        for status in self._looks(None):
            if show is not None and (text := line(status)) != said:
                show(text)
                said = text
            if (progress := status.progress) is not None and progress.step > newest:
                newest = progress.step
                yield progress.model_dump()

    def _looks(self, timeout_s: float | None) -> Iterator[JobStatus]:
        """Its status again and again until its end, which raises what it failed of."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self._found()
            yield _status(found)
            if (ending := self._ending(found)) is not None:
                if ending[0] is not ExitCode.DONE:
                    raise by_kind(_KINDS[ending[0]], ending[1])
                return
            if time.monotonic() >= deadline:
                raise TimeoutError(f"rljob/{self.name} goes on")
            time.sleep(_LOOK_S)

    def _ending(self, found: Json) -> tuple[ExitCode, str] | None:
        return ended(self.name, _status(found), found["metadata"].get("generation", 0))

    def _found(self) -> Json:
        found = self._cluster.get("RLJob", self.namespace, self.name)
        if found is None or found["metadata"]["uid"] != self._uid:
            raise InfraError(f"rljob/{self.name} was deleted from {self.namespace}")
        return found


def _status(found: Json) -> JobStatus:
    return JobStatus.model_validate(found.get("status") or {})


def submit(
    job: Job,
    overrides: Overrides = (),
    *,
    namespace: str | None = None,
    take_over: bool = False,
    kubeconfig: str | os.PathLike[str] | None = None,
    context: str | None = None,
    wait: bool = False,
    **parts: Any,
) -> ClusterRun:
    """Put a job on a Kubernetes cluster with its files, as `areal submit` does; answers once it is there.

    >>> areal.submit("job.yaml", reward=reward, namespace="team").wait()

    Args:
        job: as of `areal.run`, like overrides.
        namespace: where to; the job's, else the context's.
        take_over: own fields that kubectl or another tool set to other values.
        kubeconfig: how to reach the cluster; $KUBECONFIG unless given.
        context: of the kubeconfig; its current one unless given.
        wait: wait until the job has ended, as `ClusterRun.wait` does.
        parts: reward, workflow, hooks, rows, held_out of `areal.run`; their files are written into runs/<name>.job/.

    Raises:
        ConfigError: what `areal check` or the API server refuses, or no cluster is named.
        InfraError: the cluster can't be reached.
    """
    files = JobFiles.of(job, overrides)
    files = files.written(JobParts(**parts), Path("runs", f"{files.name}.job").absolute())
    request = checked_request(files.document, files.overrides, namespace, take_over)
    cluster = connect(Path(kubeconfig) if kubeconfig is not None else None, context)
    request = replace(request, namespace=request.namespace or cluster.namespace)
    submitted = ClusterRun(cluster, submit_objects(request, cluster, no_progress, lambda text: None))
    if wait:
        submitted.wait()
    return submitted
