"""All sessions of a gateway: opened, found by path and key, closed.

Pure; the clock is injected. A key alone finds its session, a path alone never does.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache

from areal.gateway import faults
from areal.gateway.faults import over
from areal.gateway.session import EpisodeCalls, SessionLimits
from areal.gateway.templates.template import Template
from areal.observe.metrics import RoleMetrics
from areal.workflow.branches import SessionEnding

log = logging.getLogger(__name__)

NAMES_COUNTED = 64  # of ignored fields: clients may send any
ENDED_KEPT = 65_536  # sessions whose end can still be told


@dataclass(frozen=True)
class Access:
    """How an agent reaches its session."""

    base_url: str
    api_key: str


@dataclass(frozen=True)
class OpenSession:
    """A session, and who generates for it."""

    session: EpisodeCalls
    owner: Any


class GatewayCore:
    """`secret` signs the keys, `clock` tells seconds.

    `owner` names this process where several share a secret: its sessions are told as `owner.name`, so that a key of an
    earlier process opens none of this one. `first_system`: a system message that changes is said behind what was said.
    """

    def __init__(
        self,
        template: Template,
        *,
        secret: bytes,
        clock: Callable[[], float],
        owner: str | None = None,
        first_system: bool = False,
        metrics: RoleMetrics | None = None,
    ) -> None:
        self.template = template
        self._first_system = first_system
        self._metrics = metrics
        self._names: set[str] = set()
        self._told = False  # that system messages change
        self._prefix = f"{owner}." if owner else ""
        self._secret = secret
        self._clock = clock
        self._opened: dict[str, OpenSession] = {}
        self._ended: LRUCache[str, str] = LRUCache(ENDED_KEPT)

    @property
    def sessions(self) -> int:
        """Live ones."""
        return len(self._opened)

    def open(self, name: str, owner: Any, limits: SessionLimits, *, lives_s: float, address: str) -> Access:
        """Begin a session that lives at most `lives_s`; `address` is where agents find it."""
        self._ended.pop(name, None)
        calls = EpisodeCalls(name, self.template, limits, first_system=self._first_system, forked=self._forked)
        self._opened[name] = OpenSession(calls, owner)
        told = self._prefix + name
        return Access(f"{address}/s/{told}/v1", faults.mint(self._secret, told, int(self._clock() + lives_s) + 1))

    def find(self, path: str | None, key: str) -> OpenSession:
        """The session that a key opens. Raises Refused: 401 unknown key, 403 another session's path, 410 ended."""
        told = faults.verify(self._secret, key, self._clock())
        faults.refuse_other(told, path)
        if not told.startswith(self._prefix):
            raise over("its worker has started again")
        name = told.removeprefix(self._prefix)
        if (opened := self._opened.get(name)) is None:
            raise over(self._ended.get(name, "its worker gave it up"))
        return opened

    def close(self, name: str, reason: str) -> SessionEnding:
        """End a session; its key answers 410 from now on."""
        if (opened := self._opened.pop(name, None)) is None:
            return SessionEnding()
        self._ended[name] = reason
        session = opened.session
        return SessionEnding(tuple(session.close(reason)), session.reward, session.withheld)

    def ignored(self, names: Iterable[str]) -> None:
        """Count fields of requests that were ignored; by name, while there are few names."""
        for name in names:
            if len(self._names) < NAMES_COUNTED:
                self._names.add(name)
            self._count("areal_gateway_ignored_total", field=name if name in self._names else "other")

    def _forked(self, why: str) -> None:
        if why == "system" and not self._told:
            self._told = True
            log.warning(
                "an agent's system message changes within its episode: such calls begin sequences of their own "
                "(areal_gateway_forks_total counts them; see rollout.gateway.volatileSystem)"
            )
        self._count("areal_gateway_forks_total", why=why)

    def _count(self, name: str, **labels: str) -> None:
        if self._metrics is not None:
            self._metrics.counter(name, **labels).inc()
