"""Default runtimes of a release: ClusterRLRuntimes that the chart gives as files and the leading operator applies.

A release can't contain objects of a kind that it defines itself, so they reach the cluster from here: one
`kubectl apply` of a rendered chart is enough. Owns the rule that nobody else's runtime is written: one of the same name
that another release or a person made stays as it is. They are never deleted: running jobs outlive a release.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson
from areal.errors import ConfigError
from areal.net.heartbeat import Backoff

from areal_operator.kube.errors import ApiError
from areal_operator.kube.resources import CLUSTER_RUNTIMES, Json
from areal_operator.runtime.api import MANAGER, Api

log = logging.getLogger(__name__)

RELEASE = "areal.dev/release"  # Annotation: namespace/name of the release that a runtime belongs to
_INSTANCE = "app.kubernetes.io/instance"  # alone on those that the chart's hooks made before there was the annotation
_RETRY_S = (1.0, 60.0)  # the kind itself may be a moment younger than the operator


def read(directory: Path) -> list[Json]:
    """The ClusterRLRuntimes in `directory`, one in each `.json` file, by name. Raises ConfigError for anything else."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            obj = orjson.loads(path.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{path} is no JSON: {error}", fix="install the chart anew") from None
        if not isinstance(obj, dict) or obj.get("kind") != CLUSTER_RUNTIMES.kind:
            raise ConfigError(f"{path} is no {CLUSTER_RUNTIMES.kind}", fix="install the chart anew")
        found.append(obj)
    return found


def ours(wanted: Sequence[Json], present: Iterable[Json]) -> tuple[list[Json], list[str]]:
    """Those of `wanted` that may be applied beside what is `present`, and the names of those that others own. Pure."""
    owners = {obj["metadata"]["name"]: obj["metadata"] for obj in present}
    foreign = [name for obj in wanted if (name := obj["metadata"]["name"]) in owners and not _same(obj, owners[name])]
    return [obj for obj in wanted if obj["metadata"]["name"] not in foreign], foreign


async def keep(api: Api, wanted: Sequence[Json]) -> None:
    """Apply them, again until the API server takes them; then wait for ever. Runs while this process leads."""
    backoff = Backoff(*_RETRY_S)
    while True:
        try:
            await _apply(api, wanted)
        except ApiError as error:
            log.warning("the default runtimes can't be applied yet: %s", error.message)
            await asyncio.sleep(backoff.failed())
        else:
            await asyncio.Event().wait()


async def _apply(api: Api, wanted: Sequence[Json]) -> None:
    to_apply, foreign = ours(wanted, await api.list(CLUSTER_RUNTIMES))
    for name in foreign:
        log.warning(
            "ClusterRLRuntime %s belongs to somebody else and stays as it is; delete it, or disable this release's in "
            "runtimes.definitions",
            name,
        )
    for obj in to_apply:
        await api.apply(obj, manager=MANAGER)
    log.info("default runtimes are applied", extra={"runtimes": [obj["metadata"]["name"] for obj in to_apply]})


def _same(wanted: Json, present: Json) -> bool:
    """Whether both are of one release."""
    metadata = wanted["metadata"]
    owner = (present.get("annotations") or {}).get(RELEASE)
    if owner is not None:
        return bool(owner == metadata["annotations"][RELEASE])
    instance = (present.get("labels") or {}).get(_INSTANCE)
    return instance is not None and instance == metadata["labels"][_INSTANCE]
