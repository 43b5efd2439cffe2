"""The generation servers, as their heartbeats tell, and the weights they should hold; the workers; unserved roles.

Owns which servers may be routed to, the newest version among them (the gate's Vmax) and the served policy. Takes no
listing from anywhere: a server exists because it beats.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from areal.cards import ServerPhase
from areal.net.heartbeat import Detector, Health
from areal.rollout.contract.values import WorkerReport
from areal.rollout.controller.inputs import PublishedWeights, ServerReport

REFUSALS_TO_STALL = 3  # tries of one version by every server: two may be a torn read, three are the version's fault
PROGRESS_WINDOW_S = 2.0  # a server that made no token for this long makes no progress


@dataclass(slots=True)
class ServerEntry:
    """One agent: its last report and what to believe about it."""

    report: ServerReport
    detector: Detector
    health: Health = Health.LIVE

    @property
    def live(self) -> bool:
        """Its engine is up and it is not given up for dead: what runs there goes on, also through a swap of weights."""
        return self.health is not Health.DEAD and self.report.live

    @property
    def ready(self) -> bool:
        """Beats fresh, canary passed for the version it holds: it may take new requests."""
        return self.live and self.health is Health.LIVE and self.report.ready

    @property
    def routable(self) -> bool:
        """Ready, with weights of a policy, not draining. Lag plays no part."""
        return self.ready and not self.report.draining and self.report.version >= 0

    @property
    def state(self) -> str:
        """In one word."""
        if self.health is Health.DEAD:
            return "gone"
        if self.report.draining:
            return "draining"
        if self.report.phase is not ServerPhase.AWAKE:
            return self.report.phase.value
        return "ready" if self.routable else "not ready"

    @property
    def shown(self) -> tuple[bool, bool, int, str, ServerPhase]:
        """State of the fleet that workers must know at once when it changes."""
        return (self.live, self.routable, self.report.version, self.report.address, self.report.phase)


class ServerFleet:
    """All servers. `now` is the controller's attention clock."""

    def __init__(self, served: PublishedWeights | None = None) -> None:
        self.servers: dict[str, ServerEntry] = {}
        self.served = served
        self.changed = False  # membership, health or a version: workers must know at once

    # ---- inputs

    def beat(self, now: float, report: ServerReport) -> None:
        """A server reported."""
        server = self.servers.get(report.server_id)
        if server is None or server.report.incarnation != report.incarnation:
            server = self.servers[report.server_id] = ServerEntry(report, Detector(now))
            self.changed = True
        before = server.shown
        server.detector.beat(now, report.progress)
        server.report, server.health = report, Health.LIVE
        self.changed |= before != server.shown

    def tick(self, now: float) -> None:
        """Judge every server; a dead one is forgotten when another one could have its name."""
        for server in self.servers.values():
            if (health := server.detector.health(now)) is not server.health:
                server.health = health
                self.changed = True

    def publish(self, weights: PublishedWeights) -> None:
        """Serve these weights from now on."""
        self.served = weights

    # ---- answers

    def follow(self, weights: PublishedWeights) -> bool:
        """Whether these weights follow on the served ones: a higher fence, or the same and a higher version."""
        served = self.served
        return served is None or (weights.fence, weights.version) > (served.fence, served.version)

    @property
    def newest_version(self) -> int | None:
        """Vmax: the newest version on a routable server, None without one."""
        versions = [server.report.version for server in self.servers.values() if server.routable]
        return max(versions, default=None)

    @property
    def versions(self) -> range:
        """From the version that most routable servers have or passed, to the newest; empty without one.

        New groups needn't be young enough for a server that lags: it would make them all due earlier.
        """
        versions = sorted((server.report.version for server in self.servers.values() if server.routable), reverse=True)
        return range(versions[len(versions) // 2], versions[0] + 1) if versions else range(0)

    def progressing_version(self, now: float) -> int | None:
        """The newest version on a routable server that made tokens just now."""
        versions = [
            server.report.version
            for server in self.servers.values()
            if server.routable and server.detector.frozen_s(now) < PROGRESS_WINDOW_S
        ]
        return max(versions, default=None)

    def refusal(self) -> str:
        """Why no server takes the served version, when every one refused it three times; empty otherwise."""
        alive = [server for server in self.servers.values() if server.health is not Health.DEAD]
        if self.served is None or not alive:
            return ""
        reasons = []
        for server in alive:
            refused = server.report.refused
            if refused is None or refused.policy_id != self.served.policy_id or refused.tries < REFUSALS_TO_STALL:
                return ""
            reasons.append(f"{server.report.server_id}: {refused.reason}")
        return f"WeightsRefused: every server refused {self.served.policy_id} ({'; '.join(sorted(reasons))})"

    def unserved(self, now: float) -> "UnservedRole | None":
        """That no server answers; None before there was one."""
        if not self.servers or any(server.live and server.health is Health.LIVE for server in self.servers.values()):
            return None
        return UnservedRole(
            "no generation server answered", now - min(one.detector.age_s(now) for one in self.servers.values())
        )

    def states(self) -> Counter[str]:
        """Number of servers by state, of those that ever reported."""
        return Counter(server.state for server in self.servers.values())


# ---- The rollout workers, as their streams tell: who is alive and how much each can hold


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
    unserved: "UnservedRole | None" = None  # of a service that it needs


class Crew:
    """All workers. `now` is the controller's attention clock."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerEntry] = {}
        self._tokens_before = 0  # of incarnations that are gone
        self._done_at = 0.0

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
        waits = f"{worker.worker_id} waited for {report.lost}"
        worker.unserved = UnservedRole(waits, now - report.lost_s, report.lost_role) if report.lost else None
        if report.news.done or report.news.evaluated:
            self._done_at = now
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

    def unserved(self, now: float) -> "UnservedRole | None":
        """That no worker answers; or what one waits for, while none has a sample done. None before there was one."""
        if not (live := self.live()):
            ages = [worker.detector.age_s(now) for worker in self.workers.values()]
            return UnservedRole("no rollout worker answered", now - min(ages)) if ages else None
        oldest = min((worker.unserved for worker in live if worker.unserved), key=lambda role: role.since, default=None)
        return replace(oldest, since=max(oldest.since, self._done_at)) if oldest is not None else None

    @property
    def tokens_total(self) -> int:
        """Tokens that all workers ever counted."""
        return self._tokens_before + sum(worker.tokens_total for worker in self.workers.values())


# ---- A role that does not do its work: a step after it is the first evidence that it does again

BRIEF_S = 5.0  # a shorter time is forgotten


@dataclass(frozen=True, slots=True)
class UnservedRole:
    """A role that doesn't do its work, in words, and since when by the attention clock."""

    text: str
    since: float
    role: str = ""  # whose service answers no worker; empty once one does


class ServiceWatch:
    """The role that is unserved, or that was and no step was made since."""

    def __init__(self) -> None:
        self.unserved: UnservedRole | None = None
        self._step = -1
        self._step_at = 0.0

    def look(self, now: float, unserved: UnservedRole | None, step: int) -> None:
        """The role of now, and the trainer's step."""
        stepped, known = step != self._step, self.unserved
        if stepped:
            self._step, self._step_at = step, now
        if unserved is not None:
            self.unserved = replace(unserved, since=min(unserved.since, known.since)) if known else unserved
        elif known is not None:
            brief = now - max(known.since, self._step_at) < BRIEF_S
            self.unserved = None if stepped or brief else replace(known, role="")


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

    def __contains__(self, worker: object) -> bool:
        return worker in self._free
