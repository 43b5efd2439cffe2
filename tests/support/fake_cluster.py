"""A small cluster in memory: controllers, kubelets, launchers and trainers, one tick at a time.

Owns what happens between two looks of the operator. Nothing here waits or draws a number by itself: a test says what
goes wrong and when, so that every run can be repeated. The caches are the real ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from areal.plan.cluster_names import LABEL_JOB, LABEL_POD_INDEX, LABEL_ROLE, Role, surge, workload
from areal.processes.core import ChildPhase
from areal_operator.kube.resources import (
    CLUSTER_RUNTIMES,
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PDBS,
    PODS,
    PVCS,
    RLJOBS,
    RUNTIMES,
    SERVICES,
    STATEFULSETS,
    WORKLOADS,
    Json,
    Key,
    Resource,
    resource_of,
)
from areal_operator.operator import times
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.watched import projected_node, projected_pod
from areal_operator.operator.world import node_of
from areal_operator.runtime.cache import Cache
from support.fake_api import FakeApi
from support.fake_trainers import WORKS, Launcher, Training

START = 1_800_000_000.0
CACHED = (
    RLJOBS, RUNTIMES, CLUSTER_RUNTIMES, PODS, STATEFULSETS, DEPLOYMENTS, JOBS, CONFIGMAPS, SERVICES, PVCS, PDBS, NODES,
    WORKLOADS,
)  # fmt: skip
_HOPELESS = (64, 65, 70)
AUDIT = {"lost": 0, "duplicated": 0, "tombstones": {}, "ok": True, "message": "the audit is clean"}


@dataclass
class FakeCluster:
    """One cluster with one operator's caches. `lag` delays what the caches hear until `deliver`."""

    now: float = START
    lag: bool = False
    exit_codes: dict[Role, list[int]] = field(default_factory=dict)  # of the next pods of Jobs; 0 when used up
    messages: dict[Role, str] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)  # nodes
    unschedulable: bool = False
    no_spot: bool = False  # no machine for surge servers
    pods_refused: bool = False  # workloads are there, their pods are refused
    on_pod_gone: Callable[[Json], None] = lambda pod: None

    def __post_init__(self) -> None:
        self.api = FakeApi(self.stamp, self._changed)
        self.caches: dict[Resource, Cache] = {}
        self.launchers: dict[str, Launcher] = {}
        self.training: dict[Key, Training] = {}
        self._events: list[tuple[str, Json]] = []
        self._names = 0
        self.forget_caches()
        for name in ("n1", "n2", "n3"):
            self.api.put(_node(name, ready=True))
        self.deliver()

    def stamp(self) -> str:
        return times.render(self.now)

    # What the operator's process has of the cluster.

    def forget_caches(self) -> None:
        """A new operator process: its caches are filled anew."""
        self.caches = {resource: Cache(resource) for resource in CACHED}
        self.caches[PODS] = Cache(PODS, on_gone=lambda pod: self.on_pod_gone(pod), index=node_of, project=projected_pod)
        self.caches[NODES] = Cache(NODES, project=projected_node)
        self._events.clear()
        for resource, cache in self.caches.items():
            cache.replace("", self.api.all(resource.kind), self.api._version)

    def _changed(self, kind: str, obj: Json) -> None:
        self._events.append((kind, obj))
        if not self.lag:
            self.deliver()

    def deliver(self, count: int | None = None) -> None:
        """Tell the caches what happened: all, or the first few."""
        count = len(self._events) if count is None else count
        events, self._events = self._events[:count], self._events[count:]
        for kind, obj in events:
            cache = self.caches.get(resource_of(obj))
            if cache is not None:
                (cache.removed if kind == "DELETED" else cache.offer)(dict(obj))

    def wrote(self, obj: Json) -> None:
        """The operator's own write was answered."""
        cache = self.caches.get(resource_of(obj))
        if cache is not None:
            cache.offer(dict(obj))

    # What goes wrong.

    def pods(self, role: Role | None = None) -> list[Json]:
        """Pods of a role, by name."""
        pods = self.api.all("Pod")
        return [pod for pod in pods if role is None or pod["metadata"]["labels"][LABEL_ROLE] == role.value]

    def launcher(self, pod: Json) -> Launcher:
        return self.launchers[incarnation(pod)]

    def end_child(self, pod: Json, code: int) -> bool:
        """A trainer's process ends; its launcher stays. False: none ran."""
        launcher = self.launchers.get(incarnation(pod))
        if launcher is None or launcher.phase not in WORKS:
            return False
        launcher.code = code
        launcher.phase = ChildPhase.FAILED if code in (64, 65) else ChildPhase.BACKING_OFF
        return True

    def end_container(self, pod: Json, code: int, reason: str = "Error", message: str = "") -> None:
        """A pod's first process ends; its kubelet starts another."""
        ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": self.stamp()}
        main = pod["status"]["containerStatuses"][0]
        main = {**main, "restartCount": main["restartCount"] + 1, "lastState": {"terminated": ended}}
        again = self._put_status(pod, containerStatuses=[main])
        if _role(pod) is Role.TRAINER:
            self.launchers[incarnation(again)] = Launcher()

    def delete_pod(self, pod: Json, *, disrupted: str = "") -> None:
        """Somebody deletes a pod: it ends within its grace period."""
        if disrupted:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": disrupted}
            pod = self._condition(pod, {**condition, "message": "evicted", "lastTransitionTime": self.stamp()})
        if "deletionTimestamp" not in pod["metadata"]:
            metadata = {**pod["metadata"], "deletionTimestamp": times.render(self.now + 5)}
            self.api.put({**pod, "metadata": metadata})

    def lose_node(self, name: str) -> list[Json]:
        """A machine falls silent; its pods are asked to go, and never will. Answers which."""
        self.down.add(name)
        self.api.put(_node(name, ready=False, since=self.stamp()))
        lost = [pod for pod in self.pods() if pod["spec"].get("nodeName") == name]
        for pod in lost:
            self.delete_pod(pod, disrupted="DeletionByTaintManager")
        return lost

    def remove_node(self, name: str) -> None:
        """An autoscaler takes a machine away, and its pods with it."""
        self.down.add(name)
        self.api.drop(("Node", "", name))
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.launchers.pop(incarnation(pod), None)
                self.api.drop(("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def mend_node(self, name: str) -> None:
        """The machine is back."""
        self.down.discard(name)
        self.api.put(_node(name, ready=True))

    def change(self, key: Key, edit: Callable[[Json], None]) -> None:
        """A user edits a job's spec."""
        job = self.api.objects.get(("RLJob", *key))
        if job is not None:
            spec = json.loads(json.dumps(job["spec"]))
            edit(spec)
            self.api.put({**job, "spec": spec})

    # Time.

    def tick(self, seconds: float = 5.0) -> None:
        """Everybody but the operator works for a while."""
        self.now += seconds
        self._collect_garbage()
        for workload_ in [*self.api.all("StatefulSet"), *self.api.all("Deployment")]:
            self._run_workload(workload_)
        for job in self.api.all("Job"):
            self._run_job(job)
        for pod in self.pods():
            self._run_pod(pod)
        for job in self.api.all("RLJob"):
            self._train((job["metadata"]["namespace"], job["metadata"]["name"]))

    def _collect_garbage(self) -> None:
        uids = {obj["metadata"]["uid"] for obj in self.api.objects.values()}
        for place, obj in list(self.api.objects.items()):
            owners = obj["metadata"].get("ownerReferences", [])
            orphan = owners and not any(owner["uid"] in uids or owner["kind"] == "ReplicaSet" for owner in owners)
            orphan = orphan or any(o["kind"] == "ReplicaSet" and o["uid"].split("/")[0] not in uids for o in owners)
            if orphan and place[0] == "Pod":
                self.delete_pod(obj)
            elif orphan:
                self.api.drop(place)
            elif "deletionTimestamp" in obj["metadata"] and place[0] == "Job":
                pods = list(self.api.owned_by(obj))
                for pod in pods:
                    self.delete_pod(pod)
                if not pods:
                    self.api.drop(place)

    def _run_workload(self, obj: Json) -> None:
        if "deletionTimestamp" in obj["metadata"]:
            return
        spec, name = obj["spec"], obj["metadata"]["name"]
        revision = f"{name}-{_hash(spec['template'])}"
        uid = obj["metadata"]["uid"]
        pods = [pod for pod in self.pods() if _owner(pod) in (uid, f"{uid}/rs")]
        replicas = spec["replicas"]
        if obj["kind"] == "StatefulSet":
            there = {pod["metadata"]["name"]: pod for pod in self.pods()}
            first = spec.get("ordinals", {}).get("start", 0)
            wanted = range(first, first + replicas)
            for pod in pods:
                if int(pod["metadata"]["labels"][LABEL_POD_INDEX]) not in wanted:
                    self.delete_pod(pod)
            for index in wanted:
                if f"{name}-{index}" not in there:
                    self._make_pod(obj, f"{name}-{index}", revision, index)
        else:
            alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            for pod in alive[replicas:]:
                self.delete_pod(pod)
            for _ in range(replicas - len(alive)):
                self._names += 1
                self._make_pod(obj, f"{name}-x{self._names}", revision, None)
        ready = sum(_is_ready(pod) for pod in pods)
        status = {
            "replicas": len(pods), "readyReplicas": ready, "updateRevision": revision,
            "observedGeneration": obj["metadata"]["generation"],
        }  # fmt: skip
        if obj.get("status") != status:
            self.api.put({**obj, "status": status})

    def _run_job(self, job: Json) -> None:
        if "deletionTimestamp" in job["metadata"] or job.get("status", {}).get("conditions"):
            return
        pods = [pod for pod in self.pods() if _owner(pod) == job["metadata"]["uid"]]
        ended = [pod for pod in pods if pod["status"]["phase"] in ("Succeeded", "Failed")]
        codes = [pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in ended]
        if 0 in codes:
            self._end_job(job, "Complete", "CompletionsReached")
        elif any(code in _HOPELESS for code in codes) or len(codes) > 2:
            self._end_job(job, "Failed", "BackoffLimitExceeded")
        elif len(pods) == len(ended):
            self._names += 1
            self._make_pod(job, f"{job['metadata']['name']}-x{self._names}", "", None)

    def _end_job(self, job: Json, kind: str, reason: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": self.stamp()}
        self.api.put({**job, "status": {"conditions": [condition]}})

    def _make_pod(self, owner: Json, name: str, revision: str, index: int | None) -> None:
        if self.pods_refused:
            return
        kind, uid = owner["kind"], owner["metadata"]["uid"]
        if kind == "Deployment":
            reference = {"kind": "ReplicaSet", "name": f"{owner['metadata']['name']}-1", "uid": f"{uid}/rs"}
        else:
            reference = {"kind": kind, "name": owner["metadata"]["name"], "uid": uid}
        labels = {**owner["metadata"]["labels"], "controller-revision-hash": revision}
        if index is not None:
            labels[LABEL_POD_INDEX] = str(index)
        metadata = {
            "name": name, "namespace": owner["metadata"]["namespace"], "labels": labels,
            "ownerReferences": [{"apiVersion": "v1", "controller": True, **reference}],
        }  # fmt: skip
        status = {"phase": "Pending", "conditions": [], "containerStatuses": []}
        self.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status})

    def _run_pod(self, pod: Json) -> None:
        place = ("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        node = pod["spec"].get("nodeName")
        if "deletionTimestamp" in pod["metadata"]:
            self._stop_launcher(pod)
            if node not in self.down and (times.parse(pod["metadata"]["deletionTimestamp"]) or 0) <= self.now:
                self.launchers.pop(incarnation(pod), None)
                self.api.drop(place)
            return
        if node is None:
            nodes = [name for name in ("n1", "n2", "n3") if name not in self.down]
            if self.unschedulable or not nodes or (self.no_spot and _owner_name(pod) == surge(_key(pod)[1])):
                condition = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes",
                }
                self._condition(pod, condition)
                return
            index = int(pod["metadata"]["labels"].get(LABEL_POD_INDEX, 0))
            self.api.put({**pod, "spec": {**pod["spec"], "nodeName": nodes[index % len(nodes)]}})
        elif node in self.down:
            return
        elif pod["status"]["phase"] == "Pending":
            main = {"name": "main", "restartCount": 0, "state": {"running": {}}, "lastState": {}}
            ready = [{"type": "Ready", "status": "True", "lastTransitionTime": self.stamp()}]
            started = self._put_status(
                pod, phase="Running", podIP=f"10.0.0.{self._names % 250}", containerStatuses=[main], conditions=ready
            )
            if _role(pod) is Role.TRAINER:
                self.launchers[incarnation(started)] = Launcher()
            elif _role(pod) is Role.CONTROLLER:
                training = self.training.setdefault(_key(pod), Training())
                training.hot = training.hot or self._hot_of(_key(pod))
                training.max_steps = training.hot.max_steps
        elif _role(pod) in (Role.PREPARE, Role.FINISH) and pod["status"]["phase"] == "Running":
            self._end_tool(pod)

    def _hot_of(self, key: Key) -> HotFields:
        job = self.api.objects.get(("RLJob", *key))
        if job is None:  # deleted; its pods don't know yet
            return HotFields(self.training[key].max_steps, 1, 8, 1)
        spec = job["spec"]
        algorithm, rollout = spec["algorithm"], spec["rollout"]
        bound = algorithm["maxStaleness"]
        ahead = rollout.get("ahead") or -(-bound // 2)
        return HotFields(algorithm["maxSteps"], bound, rollout["maxConcurrentRollouts"], ahead)

    def _end_tool(self, pod: Json) -> None:
        role = _role(pod)
        codes = self.exit_codes.setdefault(role, [])
        code = codes.pop(0) if codes else 0
        message = self.messages.get(role, json.dumps(AUDIT) if role is Role.FINISH else "")
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": message}
        main = {"name": "main", "restartCount": 0, "state": {"terminated": {**ended, "finishedAt": self.stamp()}}}
        self._put_status(pod, phase="Failed" if code else "Succeeded", containerStatuses=[main], conditions=[])

    def _stop_launcher(self, pod: Json) -> None:
        """The kubelet asked the pod to end: a launcher has its child save first."""
        launcher = self.launchers.get(incarnation(pod))
        if launcher is not None and pod["spec"].get("nodeName") not in self.down and launcher.phase in WORKS:
            self.save(_key(pod))
            launcher.phase = ChildPhase.STOPPED

    def save(self, key: Key) -> None:
        training = self.training.get(key)
        if training is not None and self._gang_epoch(key) == training.epoch:
            training.checkpoint = max(training.checkpoint, training.step)

    def _gang(self, key: Key) -> list[Json]:
        return [pod for pod in self.pods(Role.TRAINER) if _key(pod) == key]

    def _gang_epoch(self, key: Key) -> int:
        """The epoch in which all trainers are ready; 0 for none."""
        workload_ = self.api.objects.get(("StatefulSet", key[0], workload(key[1], Role.TRAINER)))
        pods = self._gang(key)
        if workload_ is None or not pods or len(pods) != workload_["spec"]["replicas"]:
            return 0
        found = [self.launchers.get(incarnation(pod)) if self.answers(pod) else None for pod in pods]
        epochs = {launcher.epoch if launcher and launcher.phase is ChildPhase.READY else 0 for launcher in found}
        return epochs.pop() if len(epochs) == 1 else 0

    def _train(self, key: Key) -> None:
        workload_ = self.api.objects.get(("StatefulSet", key[0], workload(key[1], Role.TRAINER)))
        reached = [
            self.launchers[incarnation(pod)]
            for pod in self._gang(key)
            if incarnation(pod) in self.launchers and self.answers(pod)
        ]
        size = workload_["spec"]["replicas"] if workload_ else 0
        self.training.setdefault(key, Training()).advance(reached, size)

    # Objects.

    def answers(self, pod: Json) -> bool:
        """Whether its main container runs on a machine that lives."""
        return pod["spec"].get("nodeName") not in self.down and _running(pod)

    def pod(self, namespace: str, name: str) -> Json | None:
        return self.api.objects.get(("Pod", namespace, name))

    def _put_status(self, pod: Json, **status: Any) -> Json:
        return self.api.put({**pod, "status": {**pod["status"], **status}})

    def _condition(self, pod: Json, condition: Json) -> Json:
        others = [known for known in pod["status"]["conditions"] if known["type"] != condition["type"]]
        if condition in pod["status"]["conditions"]:
            return pod
        return self._put_status(pod, conditions=[*others, condition])


def _node(name: str, *, ready: bool, since: str = "2026-01-01T00:00:00Z") -> Json:
    state = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": since}
    status = {"conditions": [state]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}


def _key(pod: Json) -> Key:
    return pod["metadata"]["namespace"], pod["metadata"]["labels"][LABEL_JOB]


def _role(pod: Json) -> Role:
    return Role(pod["metadata"]["labels"][LABEL_ROLE])


def _owner_name(pod: Json) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["name"])


def _owner(pod: Json) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _running(pod: Json) -> bool:
    statuses = pod["status"]["containerStatuses"]
    return bool(statuses) and "running" in statuses[0]["state"]


def _is_ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])


def incarnation(pod: Json) -> str:
    statuses = pod["status"]["containerStatuses"]
    return f"{pod['metadata']['uid']}/{statuses[0]['restartCount'] if statuses else 0}"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
