"""Default runtimes: which may be applied, what a late CRD costs, what of others stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from areal.errors import ConfigError
from areal_operator.kube.resources import CLUSTER_RUNTIMES
from areal_operator.operator.default_runtimes import RELEASE, keep, ours, read
from areal_operator.runtime.api import Api
from areal_operator.runtime.limiter import Limiter
from support import virtual_time
from support.fake_kube import FakeKube, Fault
from support.fake_kube_fronts import MemoryTransport

INSTANCE = "app.kubernetes.io/instance"


def runtime(name: str, release: str | None = "areal-system/areal", image: str = "new", **labels: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {INSTANCE: "areal", **labels}}
    if release is not None:
        metadata["annotations"] = {RELEASE: release}
    return {
        "apiVersion": "areal.dev/v1alpha1", "kind": "ClusterRLRuntime", "metadata": metadata, "spec": {"image": image},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("present", "applied"),
    [
        (runtime("a"), True),
        (runtime("a", "other/areal"), False),
        (runtime("a", None), True),  # as the chart's hooks made them
        (runtime("a", None, **{INSTANCE: "another"}), False),
        ({"metadata": {"name": "a"}}, False),  # a person's
        (runtime("b", "other/areal"), True),
    ],
)
def test_only_what_is_absent_or_of_this_release_is_applied(present: dict[str, Any], applied: bool) -> None:
    wanted = [runtime("a")]
    assert ours(wanted, [present]) == (wanted, []) if applied else ([], ["a"])


def test_they_are_applied_once_their_kind_is_served_and_others_stay() -> None:
    async def scenario() -> dict[str, str]:
        fake = FakeKube()
        api = Api(MemoryTransport(fake), Limiter(1e6, 1000, virtual_time.now))
        theirs = runtime("theirs", "other/areal", "old")
        await api.create(CLUSTER_RUNTIMES, theirs)
        fake.faults.append(Fault("list", "refuse", code=404))
        keeping = asyncio.create_task(keep(api, [runtime("mine"), runtime("theirs")]))
        await asyncio.sleep(5)  # of virtual time
        assert not keeping.done(), "it runs for as long as the process leads"
        keeping.cancel()
        assert fake.faults == []
        found = await api.list(CLUSTER_RUNTIMES)
        return {one["metadata"]["name"]: one["spec"]["image"] for one in found}

    assert virtual_time.run(scenario()) == {"mine": "new", "theirs": "old"}


def test_files_that_are_no_runtimes_are_refused_with_their_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(orjson.dumps(runtime("a")))
    assert [one["metadata"]["name"] for one in read(tmp_path)] == ["a"]
    (tmp_path / "b.json").write_text('{"kind": "ConfigMap"}')
    with pytest.raises(ConfigError, match=r"b\.json is no ClusterRLRuntime"):
        read(tmp_path)
    (tmp_path / "b.json").write_text("no")
    with pytest.raises(ConfigError, match=r"b\.json is no JSON"):
        read(tmp_path)
