"""Everything that happened to some objects, in order: a watch that a test looks back at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
from kube.harness.client import Client, Refused

Object = dict[str, Any]
KINDS = (
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "ServiceAccount"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "Deployment"),
    ("batch/v1", "Job"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)
"""What the operator makes itself (and, by name only, a Secret)."""


class History:
    """Each version of the objects of some kinds in a namespace, from now on. Use as a context manager."""

    def __init__(self, client: Client, namespace: str, *kinds: tuple[str, str]) -> None:
        self._kubeconfig = client.kubeconfig
        self._namespace = namespace
        self._kinds = kinds
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.events: list[tuple[str, Object]] = []
        self.came: dict[str, float] = {}
        """Resource version → when it came here, in seconds since 1970."""

    def __enter__(self) -> History:
        for api_version, kind in self._kinds:
            client = Client(self._kubeconfig)
            path = client.path(api_version, kind, self._namespace)
            version = client.raw("GET", path)["metadata"]["resourceVersion"]
            thread = threading.Thread(target=self._follow, args=(client, path, version), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def versions(self, kind: str, name: str) -> list[Object]:
        """Every version of one object, oldest first."""
        return [obj for _, obj in self.events if (obj["kind"], obj["metadata"]["name"]) == (kind, name)]

    def uids(self) -> dict[str, set[str]]:
        """kind/name → uids of every object of that name that ever was."""
        found: dict[str, set[str]] = {}
        for _, obj in self.events:
            found.setdefault(f"{obj['kind']}/{obj['metadata']['name']}", set()).add(obj["metadata"]["uid"])
        return found

    def values(self, kind: str, name: str, *path: str) -> Iterator[Any]:
        """How a field changed: each new value once, in order; None where it was missing."""
        last: Any = ...
        for obj in self.versions(kind, name):
            value: Any = obj
            for part in path:
                value = (value or {}).get(part)
            if value != last:
                yield value
                last = value

    def _follow(self, client: Client, path: str, version: str) -> None:
        while not self._stop.is_set():
            try:
                for event in client.watch(path, version, timeout_s=2):
                    if event.get("type", "ERROR") == "ERROR":  # a Status: the server begins or ends
                        raise Refused(500, event)
                    version = event["object"]["metadata"]["resourceVersion"]
                    self.came[version] = time.time()
                    self.events.append((event["type"], event["object"]))
            except (httpx.HTTPError, Refused):
                self._stop.wait(0.2)
        client.close()
