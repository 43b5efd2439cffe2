"""Prometheus metrics of one process. Names come from the catalogue; a name that is not there is an error at start."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.process_collector import ProcessCollector

from areal.errors import BugError
from areal.observe.catalog import CATALOG, Scope, Type

M = TypeVar("M", Counter, Gauge, Histogram)
_TYPES: Mapping[type[Counter | Gauge | Histogram], Type] = {
    Counter: Type.COUNTER,
    Gauge: Type.GAUGE,
    Histogram: Type.HISTOGRAM,
}


class Metrics:
    """A registry with the labels that all metrics of one scope in this process share."""

    def __init__(self, scope: Scope, common: Mapping[str, str]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._scope = scope
        self._common = {label: common[label] for label in scope.labels}
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        self._known: dict[tuple[object, ...], Counter | Gauge | Histogram] = {}  # with their labels

    def counter(self, name: str, **labels: str) -> Counter:
        """The counter `name` with these labels; made at first use."""
        return self._labelled(Counter, name, labels)

    def gauge(self, name: str, **labels: str) -> Gauge:
        """The gauge `name` with these labels; made at first use."""
        return self._labelled(Gauge, name, labels)

    def histogram(self, name: str, **labels: str) -> Histogram:
        """The histogram `name` with these labels; made at first use."""
        return self._labelled(Histogram, name, labels)

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Serve `/metrics` from a thread of its own and return the port (0 picks a free one)."""
        server, _thread = start_http_server(port, addr=host, registry=self.registry)
        return int(server.server_port)

    def _labelled(self, kind: type[M], name: str, labels: dict[str, str]) -> M:
        asked = (name, kind, *labels.items())
        if (known := self._known.get(asked)) is None:
            known = self._known[asked] = self._make(kind, name, labels)
        assert isinstance(known, kind)
        return known

    def _make(self, kind: type[Counter | Gauge | Histogram], name: str, labels: dict[str, str]) -> Any:
        declared, type_ = CATALOG.get(name), _TYPES[kind]
        asked = (type_, self._scope, set(labels))
        if declared is None or (declared.type, declared.scope, set(declared.labels)) != asked:
            raise BugError(f"metric {name} ({type_}, labels {sorted(labels)}) is not declared so in the catalogue")
        if name not in self._made:
            more: dict[str, Any] = {"buckets": declared.buckets} if kind is Histogram else {}
            names = (*declared.scope.labels, *declared.labels)
            self._made[name] = kind(name, declared.help, names, registry=self.registry, **more)
        family = self._made[name]
        return family.labels(**self._common, **labels) if self._common or labels else family


class RoleMetrics(Metrics):
    """Metrics of one role's process."""

    def __init__(self, role: str, job: str, namespace: str | None = None) -> None:
        namespace = namespace or os.environ.get("AREAL_NAMESPACE", "local")
        super().__init__(Scope.ROLE, {"namespace": namespace, "rljob": job, "role": role})
