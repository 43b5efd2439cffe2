"""The node's enforcer of NetworkPolicies: follows policies, pods and namespaces, and keeps nftables in step.

A process of its own in the node's network namespace (`python -m node.harness.enforcer --kubeconfig F`). It writes a
line for every ruleset it loads. When it loses the API server it lists again.
"""

from __future__ import annotations

import argparse
import queue
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from kube.harness.client import Client, Refused
from node.harness.policy import ruleset

SETTLE_S = 0.05  # events come in bursts; one ruleset answers them all
WATCHED = {
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
}


class Followed:
    """All objects of one kind, kept up to date by a thread of its own."""

    def __init__(self, kubeconfig: Path, path: str, changed: queue.SimpleQueue[str]) -> None:
        self._client = Client(kubeconfig)
        self._path = path
        self._changed = changed
        self._objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.listed = threading.Event()
        threading.Thread(target=self._follow, daemon=True, name=path).start()

    def all(self) -> list[dict[str, Any]]:
        """A copy."""
        with self._lock:
            return list(self._objects.values())

    def _follow(self) -> None:
        while True:
            try:
                self._once()
            except (httpx.HTTPError, Refused) as error:
                print(f"{self._path}: {type(error).__name__}: {error}; listing again", flush=True)
                time.sleep(0.3)

    def _once(self) -> None:
        listed = self._client.raw("GET", self._path)
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in listed["items"]}
        self.listed.set()
        self._changed.put(self._path)
        for event in self._client.watch(self._path, listed["metadata"]["resourceVersion"]):
            if event["type"] == "ERROR":
                return
            uid = event["object"]["metadata"]["uid"]
            with self._lock:
                if event["type"] == "DELETED":
                    self._objects.pop(uid, None)
                else:
                    self._objects[uid] = event["object"]
            self._changed.put(self._path)


def load(text: str) -> None:
    """Puts the ruleset in the place of the last one."""
    done = subprocess.run(["nft", "-f", "-"], input=text, text=True, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"nft refused the ruleset: {done.stderr}\n{text}")


def serve(kubeconfig: Path) -> None:
    """For ever."""
    changed: queue.SimpleQueue[str] = queue.SimpleQueue()
    followed = {name: Followed(kubeconfig, path, changed) for name, path in WATCHED.items()}
    for one in followed.values():
        one.listed.wait()
    last = ""
    while True:
        text = ruleset(*(followed[name].all() for name in ("policies", "pods", "namespaces")))
        if text != last:
            load(text)
            last = text
            print(f"loaded {text.count('chain ')} chains", flush=True)
        changed.get()
        time.sleep(SETTLE_S)
        while not changed.empty():
            changed.get()


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path, required=True)
    serve(parser.parse_args().kubeconfig)


if __name__ == "__main__":
    main()
