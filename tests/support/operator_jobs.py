"""RLJob objects for tests of the operator's decisions: small, valid, one field changed at a time."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

_SPEC: Json = {
    "model": {"path": "/models/tiny"},
    "dataset": {"train": {"jsonl": "/data/train.jsonl"}},
    "rollout": {"workers": 1, "maxConcurrentRollouts": 8},
    "algorithm": {"name": "GRPO", "groupSize": 2, "batchSize": 4, "maxSteps": 12, "maxStaleness": 1},
    "optimizer": {"learningRate": 1e-4},
    "reward": {"verifier": "exact", "replicas": 1},
    "generation": {"replicas": 2},
    "trainer": {"replicas": 2},
}


def job_object(namespace: str = "team", name: str = "digits", **spec: Any) -> Json:
    """A job as its author writes it. `spec` is merged over a small valid one."""
    merged = copy.deepcopy(_SPEC)
    for key, value in spec.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": merged}
