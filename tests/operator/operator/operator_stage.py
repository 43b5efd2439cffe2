"""A job on a fake cluster with one operator, for tests that tell a story: what happens, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from areal.plan.cluster_names import Role
from areal_operator.kube.resources import Json, Key
from support.fake_cluster import FakeCluster
from support.fake_operator import FakeOperator
from support.operator_jobs import job_object
from support.small_children import runtime_object

KEY: Key = ("team", "digits")


class Stage:
    """Time passes in `run`: a tick of the cluster, a round of questions, a look of the operator."""

    def __init__(self, *, runtime: bool = True, **spec: Any) -> None:
        self.cluster = FakeCluster()
        if runtime:
            self.cluster.api.put(runtime_object())
        self.cluster.api.put(job_object(**spec))
        self.operator = FakeOperator(self.cluster)
        self.again_s: float | None = 0.0

    @property
    def job(self) -> Json:
        found = self.cluster.api.objects.get(("RLJob", *KEY))
        assert found is not None, "the job is gone"
        return found

    @property
    def status(self) -> Json:
        found: Json = self.job.get("status", {})
        return found

    def condition(self, kind: str) -> Json:
        found: Json = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found

    def pods(self, role: Role) -> list[Json]:
        return self.cluster.pods(role)

    def names(self, role: Role) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods(role)]

    def uids(self, role: Role) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(role)}

    def look(self) -> float | None:
        """One look of the operator."""
        self.again_s = asyncio.run(self.operator.reconcile(KEY))
        return self.again_s

    def step(self, seconds: float = 5.0) -> None:
        self.cluster.tick(seconds)
        self.operator.roles.poll()
        self.look()

    def run(self, until: Callable[[], object], *, limit: int = 200, seconds: float = 5.0) -> None:
        """Let time pass until something is so."""
        for _ in range(limit):
            if until():
                return
            self.step(seconds)
        raise AssertionError(f"not within {limit} looks: {self.summary}: {self.status.get('conditions')}")

    def new_operator(self) -> None:
        """The process is replaced by another."""
        self.operator = FakeOperator(self.cluster)

    def edit(self, change: Callable[[Json], None]) -> None:
        self.cluster.change(KEY, change)

    @property
    def summary(self) -> str:
        return str(self.status.get("summary", ""))

    @property
    def training(self) -> Any:
        return self.cluster.training[KEY]

    def until_training(self, step: int = 2) -> None:
        """To a job that trains."""
        self.run(lambda: KEY in self.cluster.training and self.training.step >= step and self.summary == "Running")
