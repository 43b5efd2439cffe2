"""The rollout workers, as their streams tell: who is alive and how much each can hold.

Owns membership and free capacity. What happens to a dead worker's groups is the book's business.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from areal.net.heartbeat import Detector, Health
from areal.rollout.contract.values import WorkerReport

MOST_GROUPS = 1 << 14  # of one worker, whatever it claims: each open group costs time in each pass


@dataclass(slots=True)
class WorkerEntry:
    """One worker process."""

    worker_id: str
    incarnation: str
    capacity: int
    detector: Detector
    health: Health = Health.LIVE
    tokens_total: int = 0


class Crew:
    """All workers. `now` is the controller's attention clock."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerEntry] = {}
        self._tokens_before = 0  # of incarnations that are gone

    def beat(self, now: float, report: WorkerReport) -> bool:
        """A worker reported; True when it is a new process under this name."""
        worker = self.workers.get(report.worker_id)
        fresh = worker is None or worker.incarnation != report.incarnation
        if worker is None or fresh:
            self._tokens_before += worker.tokens_total if worker else 0
            worker = self.workers[report.worker_id] = WorkerEntry(
                report.worker_id, report.incarnation, 0, Detector(now)
            )
        worker.detector.beat(now, report.progress)
        worker.health = Health.LIVE
        worker.capacity = min(report.capacity, MOST_GROUPS)
        worker.tokens_total = max(worker.tokens_total, report.tokens_total)
        return fresh

    def tick(self, now: float) -> list[str]:
        """Judge every worker; returns those that died just now."""
        died = []
        for worker in self.workers.values():
            health = worker.detector.health(now)
            if health is Health.DEAD and worker.health is not Health.DEAD:
                died.append(worker.worker_id)
            worker.health = health
        return died

    def live(self) -> list[WorkerEntry]:
        """Workers that may get work."""
        return [worker for worker in self.workers.values() if worker.health is Health.LIVE]

    @property
    def tokens_total(self) -> int:
        """Tokens that all workers ever counted."""
        return self._tokens_before + sum(worker.tokens_total for worker in self.workers.values())


class Seats:
    """Free places of live workers, for one pass of leasing."""

    def __init__(self, workers: Iterable[WorkerEntry], held: dict[str, int]) -> None:
        self._free = {worker.worker_id: worker.capacity - held.get(worker.worker_id, 0) for worker in workers}

    @property
    def free(self) -> int:
        """Places left in all."""
        return sum(max(0, places) for places in self._free.values())

    def take(self, preferred: str = "") -> str | None:
        """A place at the preferred worker, else at the one with the most room; None when all are full."""
        if not self._free:
            return None
        worker = max(sorted(self._free), key=self._free.__getitem__)
        if self._free.get(preferred, 0) > 0:
            worker = preferred
        if self._free[worker] <= 0:
            return None
        self._free[worker] -= 1
        return worker

    def give(self, worker: str) -> None:
        """A place became free."""
        if worker in self._free:
            self._free[worker] += 1

    def __contains__(self, worker: object) -> bool:
        return worker in self._free
