"""The objects beside the job: valid in every supported Kubernetes, confined, with the platform's image and nodes."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from areal.errors import ConfigError
from areal.spec.runtime import RuntimeSpec, volume_of
from areal_operator.submit import manifests
from submit_parts import RECIPE, job_in

VERSIONS = ("1.32", "1.34", "1.36")
UID = "0123456789"


def runtime(**tools: Any) -> RuntimeSpec:
    everybody = {"spec": {"nodeSelector": {"pool": "rl"}, "containers": [{"name": "main", "image": "any:1"}]}}
    main = {"name": "main", "image": "tools:1", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}]}
    own = {"spec": {"imagePullSecrets": [{"name": "registry"}], "containers": [main], **tools}}
    return RuntimeSpec.model_validate({"template": everybody, "roles": {"tools": {"template": own}}})


@pytest.fixture
def job(tmp_path):
    patch = "podTemplate={tools: {tolerations: [{key: spot, operator: Exists}], resources: {limits: {memory: 1Gi}}}}"
    return job_in(tmp_path, patch)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_are_valid(version, job):
    volume = volume_of(job.spec, RuntimeSpec())
    pod = manifests.upload_pod(job, "team-a", "digits-run", runtime())
    for obj in (
        manifests.recipe_config_map("digits", "team-a", "recipe.py", RECIPE),
        manifests.claim("digits", "team-a", volume),
        pod,
        manifests.page_pod(job, UID, "team-a", "digits-run", runtime(), "abc"),
    ):
        kubernetes_validate.validate(obj, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**pod, "surely": "unknown"}, version, strict=True)


def test_the_pod_has_the_runtime_s_image_nodes_and_credentials_and_the_job_s_patch(job):
    spec = manifests.upload_pod(job, "team-a", "digits-run", runtime())["spec"]
    main = spec["containers"][0]
    assert main["image"] == "tools:1"
    assert main["env"][0] == {"name": "HTTPS_PROXY", "value": "http://proxy"}
    assert main["resources"] == {"limits": {"memory": "1Gi"}}
    assert spec["nodeSelector"] == {"pool": "rl"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert spec["volumes"] == [{"name": "run", "persistentVolumeClaim": {"claimName": "digits-run"}}]
    assert spec["automountServiceAccountToken"] is False


def test_the_pods_have_the_labels_and_annotations_that_the_platform_and_the_job_give_to_tools(tmp_path):
    own = "podTemplate={tools: {labels: {team: ours}, annotations: {why: data}}}"
    given = runtime()
    given.template["metadata"] = {"labels": {"team": "all", "tier": "batch", "areal.dev/role": "worker"}}
    given.roles.tools.template["metadata"] = {"labels": {"tier": None}, "annotations": {"corp.org/department": "rl"}}
    job = job_in(tmp_path, own)
    upload = manifests.upload_pod(job, "team-a", "digits-run", given)["metadata"]
    page = manifests.page_pod(job, UID, "team-a", "digits-run", given, "abc")["metadata"]
    for found in (upload, page):
        assert found["annotations"] == {"corp.org/department": "rl", "why": "data"}
        assert found["labels"]["team"] == "ours"
        assert found["labels"]["areal.dev/role"] == "upload"
        assert "tier" not in found["labels"]
    assert upload["name"] == "digits-upload"
    assert "ownerReferences" not in upload


def test_the_pod_of_a_page_sees_its_run_read_only_and_nothing_else_and_goes_with_the_job(job):
    mounted = {"name": "env", "mountPath": "/opt/areal/env"}
    environment = {"name": "env", "persistentVolumeClaim": {"claimName": "env"}}
    made = RuntimeSpec.model_validate(
        {
            "template": {
                "spec": {"volumes": [environment], "containers": [{"name": "main", "volumeMounts": [mounted]}]}
            },
            "roles": {"tools": {"template": {"spec": {"containers": [{"name": "main", "image": "tools:1"}]}}}},
        }
    )
    pod = manifests.page_pod(job, UID, "team-a", "digits-run", made, "abc")
    [owner], spec = pod["metadata"]["ownerReferences"], pod["spec"]
    [main] = spec["containers"]
    assert (pod["metadata"]["name"], owner["name"], owner["uid"]) == ("digits-view-abc", "digits", UID)
    run, scratch, extra = main["volumeMounts"]
    assert run == {
        "name": "run", "mountPath": "/areal/run/digits", "subPath": "rljobs/digits-01234567", "readOnly": True
    }  # fmt: skip
    assert scratch["mountPath"] == "/tmp"
    assert extra == mounted
    assert [volume["name"] for volume in spec["volumes"]] == ["run", "scratch", "env"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] <= 24 * 3600
    assert main["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_runtime_without_an_image_for_tools_is_refused(job):
    with pytest.raises(ConfigError, match="no image for tools") as caught:
        manifests.upload_pod(job, "team-a", "digits-run", RuntimeSpec())
    assert "spec.roles.tools.template" in caught.value.fix


def test_a_claim_is_the_one_that_the_operator_would_make(tmp_path):
    asked = job_in(tmp_path, "storage={size: 5Gi, storageClassName: fast, accessMode: ReadWriteOnce}")
    made = manifests.claim("digits", "team-a", volume_of(asked.spec, RuntimeSpec()))
    assert made is not None
    assert made["metadata"]["name"] == "digits-run"
    assert made["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5Gi"}},
        "storageClassName": "fast",
    }
    shared = job_in(tmp_path, "storage.claimName=shared")
    assert manifests.claim("digits", "team-a", volume_of(shared.spec, RuntimeSpec())) is None


def test_a_recipe_that_no_config_map_holds_is_refused_with_another_way():
    with pytest.raises(ConfigError, match="a ConfigMap holds") as caught:
        manifests.recipe_config_map("digits", "team-a", "recipe.py", "#" * (1 << 20))
    assert "pvc://claim/path" in caught.value.fix
