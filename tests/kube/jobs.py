"""RLJobs for tests on a cluster, and what can be read of them."""

from __future__ import annotations

from typing import Any

from kube.harness.client import Client
from kube.harness.processes import eventually

API = "areal.dev/v1alpha1"
Object = dict[str, Any]

TINY: Object = {
    "model": {"path": "/models/tiny"},
    "recipe": {"file": "/recipes/tiny.py"},
    "dataset": {"train": {"jsonl": "/data/train.jsonl"}},
    "rollout": {"maxSampleTokens": 16, "maxConcurrentRollouts": 8, "sampling": {"maxNewTokens": 4}},
    "algorithm": {"name": "GRPO", "groupSize": 2, "batchSize": 4, "maxSteps": 1000},
    "optimizer": {"learningRate": 1e-4},
}
"""Everything in the image: the least that a cluster runs."""


def rljob(namespace: str, name: str = "tiny", *, annotations: dict[str, str] | None = None, **blocks: Any) -> Object:
    """A job; `blocks` are merged over the spec's blocks, `None` removes one."""
    spec = {key: dict(value) for key, value in TINY.items()}
    for key, block in blocks.items():
        if block is None:
            del spec[key]
        elif isinstance(block, dict):
            spec[key] = {**spec.get(key, {}), **block}
        else:
            spec[key] = block
    metadata = {"namespace": namespace, "name": name, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": API, "kind": "RLJob", "metadata": metadata, "spec": spec}


def read(admin: Client, namespace: str, name: str = "tiny") -> Object:
    """The job now; empty when it is gone."""
    return admin.get(API, "RLJob", namespace, name) or {}


def condition(job: Object, kind: str) -> Object:
    """One of its conditions; empty before it was written."""
    return next((item for item in job.get("status", {}).get("conditions", []) if item["type"] == kind), {})


def holds(job: Object, kind: str, reason: str = "") -> bool:
    """Whether a condition is True (for that reason)."""
    found = condition(job, kind)
    return found.get("status") == "True" and reason in ("", found.get("reason"))


def summary(job: Object) -> str:
    """The one word for people."""
    return str(job.get("status", {}).get("summary", ""))


def wait_for(admin: Client, namespace: str, name: str = "tiny", *, timeout_s: float = 60.0, **wanted: str) -> Object:
    """The job, once each condition in `wanted` has its value: `Complete="True"`, or its reason: `Failed="RuleMatched"`.

    `summary=` waits for the word.
    """

    def ready() -> Object:
        job = read(admin, namespace, name)
        seen = {kind: condition(job, kind) for kind in wanted if kind != "summary"}
        missing = [kind for kind, item in seen.items() if wanted[kind] not in (item.get("status"), item.get("reason"))]
        if "summary" in wanted and summary(job) != wanted["summary"]:
            missing.append("summary")
        assert not missing, f"{missing} of {brief(job)}"
        return job

    return eventually(ready, f"{namespace}/{name}: {wanted}", timeout_s=timeout_s)


def brief(job: Object) -> str:
    """Its status in one line, for a failing test."""
    status = job.get("status", {})
    conditions = [
        f"{c['type']}={c['status']}/{c['reason']} {c.get('message', '')[:90]}" for c in status.get("conditions", [])
    ]
    return f"{status.get('summary')} {status.get('progress')} {status.get('attempts')} {'; '.join(conditions)}"
