"""A provisioner of volumes for tests: every pending claim of its class gets a folder on this machine.

A process of its own (`python -m kube.harness.volumes --kubeconfig F --root DIR`), so that it is ended by its pid. It
makes the default StorageClass, binds claims at once and in every access mode (one machine: a folder is shared
anyway), and takes the volume away with the claim. Watches; after a lost connection it lists again.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
from kube.harness.client import Client, Refused

CLASS = "areal-test"
STORAGE_CLASS: dict[str, Any] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "test.areal.dev/folder",
    "volumeBindingMode": "Immediate",
}


def volume_for(claim: dict[str, Any], root: Path) -> dict[str, Any]:
    """The volume that exactly this claim may bind."""
    metadata = claim["metadata"]
    name = f"claim-{metadata['uid']}"
    reference = {key: metadata[key] for key in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"test.areal.dev/namespace": metadata["namespace"]}},
        "spec": {
            "storageClassName": CLASS,
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "persistentVolumeReclaimPolicy": "Retain",  # the folder is ours to remove
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "hostPath": {"path": str(root / name), "type": "DirectoryOrCreate"},
        },
    }


def is_waiting(claim: dict[str, Any]) -> bool:
    """Whether a claim is ours to serve and has no volume yet."""
    return claim["spec"].get("storageClassName") == CLASS and not claim["spec"].get("volumeName")


def serve(client: Client, root: Path) -> None:
    """Lists, then follows, for ever."""
    claims = "/api/v1/persistentvolumeclaims"
    while True:
        listed = client.raw("GET", claims)
        for claim in listed["items"]:
            provide(client, root, claim)
        for event in client.watch(claims, listed["metadata"]["resourceVersion"]):
            if event["type"] in ("ADDED", "MODIFIED"):
                provide(client, root, event["object"])
            elif event["type"] == "DELETED":
                take_away(client, root, event["object"])
            elif event["type"] == "ERROR":
                break


def provide(client: Client, root: Path, claim: dict[str, Any]) -> None:
    """Makes the folder and its volume, unless the claim has one."""
    if not is_waiting(claim):
        return
    volume = volume_for(claim, root)
    folder = Path(volume["spec"]["hostPath"]["path"])
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # pods run as whatever user their image names
    try:
        client.create(volume)
    except Refused as refused:
        if refused.code != 409:
            raise


def take_away(client: Client, root: Path, claim: dict[str, Any]) -> None:
    """Removes the claim's volume and folder."""
    if claim["spec"].get("storageClassName") == CLASS:
        volume = volume_for(claim, root)
        client.delete(volume)
        shutil.rmtree(volume["spec"]["hostPath"]["path"], ignore_errors=True)


def main() -> None:
    """Serves until it is ended; an API server that is away for a while is waited for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    options = parser.parse_args()
    client = Client(options.kubeconfig)
    client.apply(STORAGE_CLASS)
    while True:
        try:
            serve(client, options.root)
        except (httpx.HTTPError, Refused) as error:
            print(f"{type(error).__name__}: {error}; listing again", flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
