"""The generation servers, as their heartbeats tell, and the weights they should hold.

Owns which servers may be routed to, the newest version among them (the gate's Vmax) and the served policy. Takes no
listing from anywhere: a server exists because it beats.
"""

from collections import Counter
from dataclasses import dataclass

from areal.cards import ServerPhase
from areal.net.heartbeat import Detector, Health
from areal.rollout.controller.reports import PublishedWeights, ServerReport

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

    def states(self) -> Counter[str]:
        """Number of servers by state, of those that ever reported."""
        return Counter(server.state for server in self.servers.values())
