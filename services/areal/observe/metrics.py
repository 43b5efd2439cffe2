"""Prometheus metrics of one process. Names come from the catalogue; a name that is not there is an error at start."""

import os
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.process_collector import ProcessCollector

from areal.errors import BugError
from areal.observe.catalog import CATALOG, Metric, Scope, Type


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
        metric = self._labelled(name, Type.COUNTER, labels)
        assert isinstance(metric, Counter)
        return metric

    def gauge(self, name: str, **labels: str) -> Gauge:
        """The gauge `name` with these labels; made at first use."""
        metric = self._labelled(name, Type.GAUGE, labels)
        assert isinstance(metric, Gauge)
        return metric

    def histogram(self, name: str, **labels: str) -> Histogram:
        """The histogram `name` with these labels; made at first use."""
        metric = self._labelled(name, Type.HISTOGRAM, labels)
        assert isinstance(metric, Histogram)
        return metric

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Serve `/metrics` from a thread of its own and return the port (0 picks a free one)."""
        server, _thread = start_http_server(port, addr=host, registry=self.registry)
        return int(server.server_port)

    def _labelled(self, name: str, kind: Type, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        asked = (name, kind, *labels.items())
        if (known := self._known.get(asked)) is None:
            known = self._known[asked] = self._declared(name, kind, labels)
        return known

    def _declared(self, name: str, kind: Type, labels: dict[str, str]) -> Counter | Gauge | Histogram:
        declared = CATALOG.get(name)
        as_declared = declared is not None and (declared.type, declared.scope) == (kind, self._scope)
        if declared is None or not as_declared or set(declared.labels) != set(labels):
            raise BugError(f"metric {name} ({kind}, labels {sorted(labels)}) is not declared so in the catalogue")
        if (family := self._made.get(name)) is None:
            family = self._made[name] = self._family(declared)
        return family.labels(**self._common, **labels) if self._common or labels else family

    def _family(self, metric: Metric) -> Counter | Gauge | Histogram:
        names = (*metric.scope.labels, *metric.labels)
        if metric.type is Type.COUNTER:
            return Counter(metric.name, metric.help, names, registry=self.registry)
        if metric.type is Type.GAUGE:
            return Gauge(metric.name, metric.help, names, registry=self.registry)
        return Histogram(metric.name, metric.help, names, buckets=metric.buckets, registry=self.registry)


class RoleMetrics(Metrics):
    """Metrics of one role's process."""

    def __init__(self, role: str, job: str, namespace: str | None = None) -> None:
        namespace = namespace or os.environ.get("AREAL_NAMESPACE", "local")
        super().__init__(Scope.ROLE, {"namespace": namespace, "rljob": job, "role": role})
