"""Merging pod templates: what a patch changes, and what no patch can."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from areal.errors import ConfigError
from areal.spec.quantity import kubernetes_bytes
from areal_operator.operator.children.merge import merge
from areal_operator.operator.children.needs import fitted
from hypothesis import given, settings
from hypothesis import strategies as st

Json = dict[str, Any]


def _main(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


def _container(template: Json, name: str = "main") -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == name)
    return found


def test_maps_merge_key_by_key_and_null_removes_a_key() -> None:
    base = {"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"hostNetwork": True}}
    patch: Json = {"metadata": {"labels": {"b": "3", "c": "4"}}, "spec": {"hostNetwork": None}}
    assert merge(base, patch) == {"metadata": {"labels": {"a": "1", "b": "3", "c": "4"}}, "spec": {}}


def test_containers_and_their_variables_merge_by_name_and_keep_their_order() -> None:
    base = _main(image="one", env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    patch = {
        "spec": {
            "containers": [
                {"name": "sidecar", "image": "two"},
                {"name": "main", "env": [{"name": "C", "value": "3"}, {"name": "A", "value": "9"}]},
            ]
        }
    }
    merged = merge(base, patch)
    assert [c["name"] for c in merged["spec"]["containers"]] == ["main", "sidecar"]
    assert _container(merged) == {
        "name": "main",
        "image": "one",
        "env": [{"name": "A", "value": "9"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
    }


def test_mounts_merge_by_path_and_ports_by_number_and_protocol() -> None:
    base = _main(
        volumeMounts=[{"mountPath": "/data", "name": "a", "readOnly": True}],
        ports=[{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}],
    )
    patch = _main(
        volumeMounts=[{"mountPath": "/data", "name": "b"}, {"mountPath": "/more", "name": "a"}],
        ports=[{"containerPort": 53, "protocol": "TCP", "name": "dns-tcp"}],
    )
    main = _container(merge(base, patch))
    assert main["volumeMounts"] == [
        {"mountPath": "/data", "name": "b", "readOnly": True},
        {"mountPath": "/more", "name": "a"},
    ]
    assert main["ports"] == [
        {"containerPort": 53, "protocol": "UDP"},
        {"containerPort": 53, "protocol": "TCP", "name": "dns-tcp"},
    ]


def test_tolerations_are_added_once() -> None:
    gpu, spot = {"key": "gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}
    merged = merge({"spec": {"tolerations": [gpu]}}, {"spec": {"tolerations": [gpu, spot]}})
    assert merged["spec"]["tolerations"] == [gpu, spot]


def test_other_lists_are_replaced() -> None:
    assert _container(merge(_main(command=["a", "b"]), _main(command=["c"])))["command"] == ["c"]


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        (
            _main(readinessProbe={"grpc": {"port": 9000}, "periodSeconds": 5}),
            _main(readinessProbe={"httpGet": {"path": "/health", "port": 30000}}),
            _main(readinessProbe={"httpGet": {"path": "/health", "port": 30000}, "periodSeconds": 5}),
        ),
        (
            _main(env=[{"name": "A", "value": "1"}]),
            _main(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            _main(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        ),
        (
            {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]}},
            {"spec": {"volumes": [{"name": "tmp", "persistentVolumeClaim": {"claimName": "cache"}}]}},
            {"spec": {"volumes": [{"name": "tmp", "persistentVolumeClaim": {"claimName": "cache"}}]}},
        ),
        (
            {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]}},
            {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]}},
            {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}},
        ),
    ],
    ids=["a probe's handler", "a variable's source", "a volume's source", "the same source"],
)
def test_of_fields_that_exclude_each_other_the_patch_s_one_stays(base: Json, patch: Json, expected: Json) -> None:
    assert merge(base, patch) == expected


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        ({"spec": {"containers": {"main": {}}}}, "template.spec.containers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "template.spec.containers"),
        (_main(env={"A": "1"}), "template.spec.containers[main].env"),
        (_main(volumeMounts=[{"name": "tmp"}]), "template.spec.containers[main].volumeMounts"),
        ({"spec": {"tolerations": ["gpu"]}}, "template.spec.tolerations"),
        ({"metadata": {"labels": ["a"]}}, "template.metadata.labels"),
        (_main(resources="small"), "template.spec.containers[main].resources"),
        (_main(ports=[{"containerPort": "http"}]), "template.spec.containers[main].ports"),
    ],
)
def test_what_can_t_be_merged_is_refused_with_its_place(patch: Json, place: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        merge(_main(image="one"), patch)
    assert refusal.value.message.startswith(f"{place}:")


_words = st.sampled_from(["a", "b", "c"])
_plain = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | _words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_words, inner, max_size=2),
    max_leaves=6,
)
_map = st.dictionaries(_words, _plain, max_size=2)
_env = st.fixed_dictionaries({"name": _words}, optional={"value": _words, "valueFrom": _plain})
_mount = st.fixed_dictionaries({"mountPath": _words}, optional={"name": _words, "readOnly": st.booleans()})
_port = st.fixed_dictionaries(
    {"containerPort": st.integers(1, 3)}, optional={"protocol": st.sampled_from(["TCP", "UDP"])}
)
_probe = st.fixed_dictionaries({}, optional={"grpc": _plain, "exec": _plain, "periodSeconds": st.integers(1, 9)})
_container_patch = st.fixed_dictionaries(
    {"name": _words},
    optional={
        "env": st.lists(_env, max_size=3),
        "volumeMounts": st.lists(_mount, max_size=3),
        "ports": st.lists(_port, max_size=3),
        "readinessProbe": _probe,
        "securityContext": _map | st.none(),
        "command": st.lists(_words, max_size=2),
    },
)
_volume = st.fixed_dictionaries({"name": _words}, optional={"emptyDir": _plain, "configMap": _plain})
_templates = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": _map, "annotations": st.none(), "a": _plain}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(_container_patch, max_size=3),
                "volumes": st.lists(_volume, max_size=3),
                "tolerations": st.lists(st.dictionaries(_words, _words, max_size=2), max_size=3) | st.none(),
                "nodeSelector": st.none() | _map,
            },
        ),
    },
)


def _keys(template: Json) -> list[tuple[str, list[str]]]:
    """Names of everything that merges by name, in order."""
    spec = template.get("spec", {})
    found = [(kind, [item["name"] for item in spec.get(kind, [])]) for kind in ("containers", "volumes")]
    containers = spec.get("containers", [])
    return found + [(c["name"], [variable["name"] for variable in c.get("env", [])]) for c in containers]


@settings(deadline=None)
@given(_templates, _templates)
def test_the_same_patch_again_changes_nothing(base: Json, patch: Json) -> None:
    once = merge(base, patch)
    assert merge(once, patch) == once


@settings(deadline=None)
@given(_templates, _templates)
def test_neither_argument_is_changed_and_nothing_is_shared_with_them(base: Json, patch: Json) -> None:
    base_before, patch_before = copy.deepcopy(base), copy.deepcopy(patch)
    merged = merge(base, patch)
    _scribble(merged)
    assert (base, patch) == (base_before, patch_before)


def _scribble(value: Any) -> None:
    """Change everything that can be changed in place."""
    if isinstance(value, dict):
        for inner in value.values():
            _scribble(inner)
        value["scribbled"] = True
    elif isinstance(value, list):
        for inner in value:
            _scribble(inner)
        value.append("scribbled")


@settings(deadline=None)
@given(_templates, _templates)
def test_what_was_there_keeps_its_order_and_names_stay_unique(base: Json, patch: Json) -> None:
    before, after = dict(_keys(merge(base))), dict(_keys(merge(base, patch)))
    for kind, names in after.items():
        assert len(set(names)) == len(names)
        kept = [name for name in names if name in before.get(kind, [])]
        assert kept == [name for name in before.get(kind, []) if name in kept]


@settings(deadline=None)
@given(_templates, _templates, _templates)
def test_patches_in_one_go_are_the_same_as_one_after_the_other(base: Json, first: Json, second: Json) -> None:
    assert merge(base, first, second) == merge(merge(base, first), second)


@settings(deadline=None)
@given(_templates)
def test_no_null_is_left_in_a_map(template: Json) -> None:
    assert not _has_null(merge({}, template))


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(inner is None or _has_null(inner) for inner in value.values())
    return isinstance(value, list) and any(_has_null(inner) for inner in value)


@pytest.mark.parametrize(
    ("count", "text"), [(20 << 30, "20Gi"), (3 << 20, "3Mi"), (1000, "1000"), (1536, "1536"), (0, "0")]
)
def test_a_size_is_written_as_people_do(count: int, text: str) -> None:
    assert kubernetes_bytes(count) == text


def test_a_request_above_our_default_limit_raises_the_limit() -> None:
    defaults = {"requests": {"memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    given = {"requests": {"memory": "8Gi"}, "limits": {"memory": "1Gi"}}
    assert fitted(given, defaults) == {"requests": {"memory": "8Gi"}, "limits": {"memory": "8Gi"}}


def test_a_limit_below_our_default_request_lowers_the_request() -> None:
    defaults = {"requests": {"memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    given = {"requests": {"memory": "256Mi"}, "limits": {"memory": "128Mi"}}
    assert fitted(given, defaults) == {"requests": {"memory": "128Mi"}, "limits": {"memory": "128Mi"}}


def test_a_contradiction_of_the_user_s_own_is_left_for_the_api_server_to_name() -> None:
    given = {"requests": {"memory": "8Gi"}, "limits": {"memory": "4Gi"}}
    assert fitted(given, {"requests": {"memory": "256Mi"}}) == given
