"""`areal view rljob/NAME`: the page of a job on a cluster, on a port of this machine.

Uses the job's own pod of the role `view` when one is ready; else a pod of this command's, made with the user's own
rights, which mounts the run read-only and serves the page on its loopback with a key, and which is deleted at the end.
A TCP proxy carries each connection of this machine to a stream into the pod.
"""

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from areal.errors import ArealError, InfraError
from areal.plan import cluster_names as names
from areal.spec import job_from_object
from areal.spec.runtime import RuntimeSpec

from areal_operator.submit.cluster import Cluster
from areal_operator.submit.manifests import Json, page_dir, page_pod
from areal_operator.submit.send import Programs, Say
from areal_operator.submit.temporary_pod import program_in, runtime_copy, runtime_of

_START_S = 120.0  # a loaded node starts an interpreter slowly


@contextmanager
def page_of(
    found: Json,
    cluster: Cluster,
    port: int,
    say: Say,
    programs: Programs | None = None,
    ports: Callable[[str, str, int], socket.socket] | None = None,
) -> Iterator[str]:
    """The address of the page of the job `found`, while entered. `port`: on loopback, 0 picks one."""
    name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
    reached = ports or cluster.port
    listener = socket.create_server(("127.0.0.1", port))
    with listener:
        here = int(listener.getsockname()[1])
        standing = _standing(cluster, namespace, name)
        if standing is not None:
            say(f"the pod {standing} shows the job; it asks for a token: `kubectl create token`, or your login's own")
            with Forward(listener, lambda: reached(namespace, standing, names.HTTP_PORT), say):
                yield f"http://127.0.0.1:{here}/r/{name}"
            return
        pod = pod_of(found, cluster)
        command = ["areal", "view", page_dir(name), "--port", str(here)]
        with program_in(pod, command, cluster, say, "to show the run from", programs) as program:
            address = program.line(_START_S).decode(errors="replace").strip()
            if not address.startswith(f"http://127.0.0.1:{here}/"):
                raise InfraError(f"the pod answered {address!r}", fix="Check the image of the runtime's tools role.")
            with Forward(listener, lambda: reached(namespace, pod["metadata"]["name"], here), say):
                yield address


def pod_of(found: Json, cluster: Cluster) -> Json:
    """The pod that mounts read-only the job's run, or that of a job that is gone, as `kept_job` gives it."""
    job, metadata = job_from_object(found), found["metadata"]
    uid, namespace = metadata["uid"], metadata["namespace"]
    kept = (metadata.get("annotations") or {}).get(names.ANNOTATION_RUNTIME)
    copy = cluster.get("ConfigMap", namespace, names.runtime_config_map(metadata["name"])) if not kept else None
    runtime = RuntimeSpec.model_validate_json(kept) if kept else runtime_copy(copy, uid)
    claim = job.spec.storage.claim_name or names.run_claim(job.metadata.name)
    pod = page_pod(job, uid, namespace, claim, runtime or runtime_of(job, namespace, cluster), secrets.token_hex(3))
    if kept:
        del pod["metadata"]["ownerReferences"]  # with an owner that is gone it would be deleted at once
    return pod


def kept_job(cluster: Cluster, namespace: str, name: str) -> Json | None:
    """A job that is gone, as the claim tells it that outlived it; None without such a claim."""
    metadata = (cluster.get("PersistentVolumeClaim", namespace, names.run_claim(name)) or {}).get("metadata", {})
    told, uid = metadata.get("annotations") or {}, (metadata.get("labels") or {}).get(names.LABEL_RUN)
    if uid is None or names.ANNOTATION_JOB not in told:
        return None
    named = {"name": name, "namespace": namespace, "uid": uid, "annotations": told}
    spec = json.loads(told[names.ANNOTATION_JOB])
    return {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": named, "spec": spec}


def _standing(cluster: Cluster, namespace: str, job: str) -> str | None:
    """The name of the job's own pod for its page, when it is ready."""
    wanted = ",".join(f"{label}={value}" for label, value in names.selector(job, names.Role.VIEW).items())
    for pod in cluster.all_of("Pod", namespace, selector=wanted):
        conditions = (pod.get("status") or {}).get("conditions") or []
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if ready and "deletionTimestamp" not in pod["metadata"]:
            return str(pod["metadata"]["name"])
    return None


_CHUNK = 64 << 10


class Forward:
    """Carries while it is entered. `opened` gives the other end, as a socket; it may block and raise."""

    def __init__(self, listener: socket.socket, opened: Callable[[], Any], say: Say) -> None:
        self._listener = listener
        self._opened = opened
        self._say = say
        self._accepting = threading.Thread(target=self._accept, name="forward", daemon=True)

    def __enter__(self) -> "Forward":
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        self._accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), name="forwarded", daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near:
            try:
                far = self._opened()
            except ArealError as error:
                self._say(error.message)
                return
            back = threading.Thread(target=_pump, args=(far, near), name="forwarded-back", daemon=True)
            back.start()
            _pump(near, far)
            far.close()
            back.join()


def _pump(source: Any, target: Any) -> None:
    """Until one of them ends; then `source`'s peer hears it."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
