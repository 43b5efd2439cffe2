"""What a platform's runtime may change of a pod, and what survives every runtime."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from areal.errors import ConfigError
from areal.plan.cluster_names import Role, role_labels
from areal.plan.role_specs import long_running, spec_of
from areal_operator.operator.children import JobBlueprint
from areal_operator.operator.children.pods import pod_template
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.cluster_jobs import CPU_RUNTIME, quickstart, quickstart_wanted, wanted, with_pod_template
from support.examples import examples
from support.restricted import problems

Json = dict[str, Any]


def main_of(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    return found


def under(runtime_spec: Json, *, role: str = "", **container: Any) -> JobBlueprint:
    """The quickstart under a runtime with this pod spec, and these fields of the container main."""
    runtime = copy.deepcopy(CPU_RUNTIME)
    template = runtime["roles"].setdefault(role, {"template": {}})["template"] if role else runtime["template"]
    spec = template.setdefault("spec", {})
    spec.update(runtime_spec)
    if container:
        mains = spec.setdefault("containers", [{"name": "main"}])
        mains[0].update(container)
    return wanted(quickstart(), runtime)


def test_the_platform_may_loosen_confinement_of_one_role() -> None:
    context = {"readOnlyRootFilesystem": False, "capabilities": {"add": ["IPC_LOCK"]}}
    w = under({"securityContext": {"runAsUser": 1000}}, role="trainer", securityContext=context)
    trainer, worker = pod_template(w, Role.TRAINER), pod_template(w, Role.WORKER)
    assert main_of(trainer)["securityContext"]["readOnlyRootFilesystem"] is False
    assert main_of(trainer)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert trainer["spec"]["securityContext"]["runAsUser"] == 1000
    assert worker["spec"]["securityContext"]["runAsUser"] == 65532
    assert problems(worker["spec"]) == []


def test_null_leaves_the_user_to_the_cluster() -> None:
    """As OpenShift wants it, which gives every namespace a range of users."""
    w = under({"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}})
    security = pod_template(w, Role.WORKER)["spec"]["securityContext"]
    assert security.keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}


def test_a_container_of_the_platform_starts_as_confined_as_ours() -> None:
    w = under({"initContainers": [{"name": "warm", "image": "warm:1", "restartPolicy": "Always"}]}, role="worker")
    spec = pod_template(w, Role.WORKER)["spec"]
    assert [c["name"] for c in spec["initContainers"]] == ["warm"]
    assert problems(spec) == []
    assert "/areal/access" not in str(spec["initContainers"])


def test_a_role_s_template_wins_over_the_one_for_all() -> None:
    runtime = copy.deepcopy(CPU_RUNTIME)
    runtime["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "all"}, {"name": "B", "value": "all"}]
    runtime["roles"]["trainer"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "trainer"}]
    w = wanted(with_pod_template(quickstart(), trainer={"env": [{"name": "B", "value": "job"}]}), runtime)
    env = {one["name"]: one.get("value") for one in main_of(pod_template(w, Role.TRAINER))["env"]}
    assert (env["A"], env["B"]) == ("trainer", "job")


def test_a_platform_gives_more_time_to_end_but_not_less() -> None:
    for asked, given_s in ((1, 660), (900, 900)):
        w = under({"terminationGracePeriodSeconds": asked}, role="trainer")
        assert pod_template(w, Role.TRAINER)["spec"]["terminationGracePeriodSeconds"] == given_s


def test_a_runtime_without_an_image_is_refused_with_the_field() -> None:
    w = wanted(quickstart(), {"roles": {"worker": {"template": CPU_RUNTIME["template"]}}})
    pod_template(w, Role.WORKER)
    with pytest.raises(ConfigError, match="no image for trainer") as refusal:
        pod_template(w, Role.TRAINER)
    assert "spec.roles.trainer.template" in refusal.value.fix


def test_a_runtime_that_sets_what_is_the_operator_s_is_refused_with_the_field() -> None:
    with pytest.raises(ConfigError, match=r"the runtime's spec\.template\.spec\.containers\[main\]\.env\[0\]\.name"):
        pod_template(under({}, env=[{"name": "AREAL_INDEX", "value": "7"}]), Role.WORKER)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 5) | st.sampled_from(["", "a", "/tmp", "/areal/run"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "mountPath", "value", "limits", "memory", "drop"]), inner, max_size=2
        )
    ),
    max_leaves=5,
)
_MOUNTS = st.lists(
    st.fixed_dictionaries(
        {"mountPath": st.sampled_from(["/areal/run", "/areal/access/token", "/areal", "/data", "/tmp", "/x"])},
        optional={
            "name": st.sampled_from(["run", "tmp", "access"]),
            "subPath": st.just(".."),
            "readOnly": st.booleans(),
        },
    )
)
_MAP = st.dictionaries(st.sampled_from(["limits", "requests", "grpc", "runAsUser", "capabilities"]), _JUNK, max_size=2)


def _runtimes(*, map_: st.SearchStrategy[Any], list_: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Runtime templates whose maps and lists are drawn from these."""
    env = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["HOME", "X"]), "value": st.just("1")}))
    port = st.fixed_dictionaries({"containerPort": st.sampled_from([9000, 8080])}, optional={"hostPort": st.just(80)})
    main = st.fixed_dictionaries(
        {"name": st.just("main"), "image": st.just("image:1")},
        optional={
            "command": _JUNK,
            "args": _JUNK,
            "env": env | list_,
            "ports": st.lists(port) | list_,
            "resources": st.just({"limits": {"memory": "1Gi"}}) | map_,
            "securityContext": _MAP | map_,
            "volumeMounts": _MOUNTS | list_,
            "livenessProbe": _MAP | map_,
        },
    )
    volume = st.fixed_dictionaries(
        {"name": st.sampled_from(["run", "access", "job", "mine"])}, optional={"hostPath": _JUNK}
    )
    spec = st.fixed_dictionaries(
        {"containers": st.lists(main, min_size=1, max_size=1)},
        optional={
            "volumes": st.lists(volume),
            "serviceAccountName": _JUNK,
            "automountServiceAccountToken": _JUNK,
            "restartPolicy": _JUNK,
            "terminationGracePeriodSeconds": _JUNK,
            "affinity": st.just({"podAffinity": {}}) | map_,
            "hostname": _JUNK,
            "nodeName": _JUNK,
            "tolerations": st.just([{"key": "gpu"}]) | list_,
            "securityContext": _MAP | map_,
            "enableServiceLinks": _JUNK,
        },
    )
    metadata = st.fixed_dictionaries({}, optional={"labels": st.just({"a": "b"}) | map_, "annotations": map_})
    return st.fixed_dictionaries({"spec": spec}, optional={"metadata": metadata})


@settings(max_examples=examples(100), deadline=None)
@given(template=_runtimes(map_=_JUNK, list_=_JUNK), role=st.sampled_from([Role.TRAINER, Role.PREPARE]))
def test_a_malformed_runtime_is_refused_and_nothing_worse(template: Json, role: Role) -> None:
    with contextlib.suppress(ConfigError, ValidationError):
        made = pod_template(wanted(quickstart(), {"template": template}), role)
        assert main_of(made)["command"] == spec_of(role).command
        assert role_labels("digits", role).items() <= made["metadata"]["labels"].items()


@settings(max_examples=examples(100), deadline=None)
@given(
    template=_runtimes(map_=st.just({}), list_=st.just([])),
    role=st.sampled_from([role for role in long_running() if role is not Role.REWARD]),
)
def test_what_is_the_operator_s_survives_every_runtime(template: Json, role: Role) -> None:
    made = pod_template(wanted(quickstart(), {"template": template}), role)
    plain = pod_template(quickstart_wanted(), role)
    spec, main = made["spec"], main_of(made)
    ours = {volume["name"]: volume for volume in plain["spec"]["volumes"] if volume["name"] not in ("tmp", "shm")}
    assert {volume["name"]: volume for volume in spec["volumes"] if volume["name"] in ours} == ours
    mounts = {m["mountPath"]: m for m in main["volumeMounts"] if m["mountPath"].startswith(("/areal", "/data"))}
    expected = {
        m["mountPath"]: m for m in main_of(plain)["volumeMounts"] if m["mountPath"].startswith(("/areal", "/data"))
    }
    assert {path: mount for path, mount in mounts.items() if role is Role.REDIS or path != "/data"} == expected
    assert main["command"] == spec_of(role).command
    assert "args" not in main
    assert role_labels("digits", role).items() <= made["metadata"]["labels"].items()
    assert main["env"][:3] == main_of(plain)["env"][:3]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("digits", False)
    assert (spec["restartPolicy"], spec["enableServiceLinks"]) == ("Always", False)
    assert spec["terminationGracePeriodSeconds"] >= plain["spec"]["terminationGracePeriodSeconds"]
    assert not {"hostname", "nodeName"} & spec.keys()
