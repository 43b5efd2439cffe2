"""Publishes versions beside training: write, announce, collect, on one thread, in order.

Owns nothing but that thread. What it writes was copied before, so training goes on meanwhile. A failure is raised at
the next `publish` or `wait`, never swallowed; one version at a time bounds memory to one copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path

from areal.errors import InfraError
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.collect import collect
from areal.weights.manifest import Canary
from areal.weights.publish import WeightsRef, publish
from torch import Tensor

from areal_trainer.publish.files import sources

Announce = Callable[[WeightsRef, bool], str]
"""Tells the controller about a version (True: the last); answers the policy that is served then."""


@dataclass(frozen=True)
class Published:
    """A version that the controller knows."""

    policy: PolicyId
    wall_s: float
    bytes: int


class Publisher:
    """Writes under `root`. Rank 0 only."""

    def __init__(self, root: Path, files: Mapping[str, Path], announce: Announce, waits: WaitRegistry) -> None:
        self._root = root
        self._files = files
        self._announce = announce
        self._waits = waits
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="areal-publish")
        self._running: Future[Published] | None = None
        self.latest: Published | None = None

    def publish(
        self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]], canary: Canary, *, final: bool, deadline_s: float
    ) -> None:
        """Start to publish; first waits until the version before is out."""
        self.wait(deadline_s)
        self._running = self._pool.submit(self._publish, policy, tensors, canary, final)

    def wait(self, deadline_s: float) -> None:
        """Wait until nothing is being published. Raises what went wrong with it."""
        if self._running is None:
            return
        with self._waits.waiting("publish", "the version before to be written and accepted", deadline_s=deadline_s):
            try:
                self.latest = self._running.result(deadline_s)
            except FutureTimeoutError:
                raise InfraError(
                    f"publishing weights takes longer than {deadline_s:.0f} s", fix="check the run's volume"
                ) from None
        self._running = None

    def close(self) -> None:
        """Give the thread back; what runs is finished."""
        self._pool.shutdown(wait=True)

    def _publish(
        self, policy: PolicyId, tensors: Sequence[tuple[str, Tensor]], canary: Canary, final: bool
    ) -> Published:
        began = time.monotonic()
        reference = publish(self._root, policy, sources(tensors), canary, self._files)
        served = self._announce(reference, final)
        kept = {PolicyId.parse(served)} if served else set()
        collect(self._root, kept, latest=policy)
        size = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
        return Published(policy, time.monotonic() - began, size)
