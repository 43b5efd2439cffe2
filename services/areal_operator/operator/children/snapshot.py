"""Snapshot of a job's runtime, taken when it is accepted: editing a runtime changes later jobs only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from areal.errors import ConfigError
from areal.plan.cluster_names import runtime_config_map
from areal.spec.runtime import RuntimeSpec

from areal_operator.operator.children.objects import child
from areal_operator.operator.children.wanted import JobBlueprint, Json

SNAPSHOT_KEY = "runtime.json"


def runtime_snapshot(w: JobBlueprint) -> Json:
    """The ConfigMap that keeps it."""
    return child(w, "v1", "ConfigMap", runtime_config_map(w.name), data={SNAPSHOT_KEY: _text(w.runtime)})


def snapshot_hash(runtime: RuntimeSpec) -> str:
    """What a job's status shows of its runtime. Fields that nobody gave don't count: a new default changes no hash."""
    return hashlib.sha256(_text(runtime).encode()).hexdigest()[:16]


def read_snapshot(config_map: Mapping[str, Any]) -> RuntimeSpec:
    """The runtime that `runtime_snapshot` kept. Raises ConfigError when somebody damaged it."""
    try:
        return RuntimeSpec.model_validate(json.loads((config_map.get("data") or {})[SNAPSHOT_KEY]))
    except (KeyError, ValueError) as error:
        name = (config_map.get("metadata") or {}).get("name", "")
        raise ConfigError(
            f"the ConfigMap {name} holds no runtime any more: {error}",
            fix=f"Delete the job, or restore the ConfigMap {name}.",
        ) from error


def _text(runtime: RuntimeSpec) -> str:
    given = runtime.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
