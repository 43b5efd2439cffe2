"""What a job says to a cluster, and what comes back from one: sources, runtimes, volumes, statuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.errors import ConfigError
from areal.spec import RLJob, check, for_clusters_only, job_from_object, load_job
from areal.spec.locality import Locality, locality_of, named_files
from areal.spec.problems import SpecError
from areal.spec.runtime import RuntimeSpec, runtime_from_object, volume_of
from areal.spec.status import REASONS, ConditionEntry, ConditionType, JobStatus, Summary
from areal.yaml_file.document import read_document
from areal.yaml_file.table import read_table
from areal_operator.operator.children import merge
from spec_corpus import CORPUS

from tools.pages.conditions import render

QUICKSTART = CORPUS / "accepted" / "quickstart.yaml"
ON_VOLUMES = CORPUS / "accepted" / "on-volumes.yaml"
CONDITIONS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "conditions.md"
RUNTIME: dict[str, Any] = {"apiVersion": "areal.dev/v1alpha1", "kind": "ClusterRLRuntime", "metadata": {"name": "cpu"}}


def job(*overrides: str) -> RLJob:
    return load_job(QUICKSTART, overrides)


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("models/digits", Locality.RELATIVE),
        ("./models/digits", Locality.RELATIVE),
        ("/models/digits", Locality.ABSOLUTE),
        ("pvc://models/digits", Locality.VOLUME),
        ("hf://Qwen/Qwen3-8B", Locality.HUB),
    ],
)
def test_a_source_says_where_it_is(source, where):
    assert locality_of(source) is where


def test_files_are_named_by_their_fields():
    assert named_files(job("trainer.hooks=hooks.py").spec) == {
        "spec.model.path": "models/digits-1m",
        "spec.recipe.file": "examples/digits.py",
        "spec.dataset.train.jsonl": "data/train.jsonl",
        "spec.dataset.evaluation.jsonl": "data/heldout.jsonl",
        "spec.trainer.hooks": "hooks.py",
    }


def test_one_machine_refuses_what_only_a_cluster_has_and_says_what_to_write():
    refused = {finding.field: finding for finding in for_clusters_only(load_job(ON_VOLUMES))}
    assert refused.keys() == {
        "spec.model.uri",
        "spec.model.tokenizer",
        "spec.recipe.configMap",
        "spec.dataset.train.jsonl",
        "spec.dataset.evaluation.huggingFace.path",
        "spec.trainer.hooks",
    }
    assert "Name the recipe's path in recipe.file." in refused["spec.recipe.configMap"].fix
    external = for_clusters_only(load_job(CORPUS / "accepted" / "external-redis.yaml"))
    assert [finding.field for finding in external] == ["spec.replay.backend"]
    assert for_clusters_only(load_job(CORPUS / "accepted" / "cluster-blocks.yaml")) == []


def test_files_on_volumes_and_in_images_are_not_looked_for_here(tmp_path):
    on_volumes = check(load_job(ON_VOLUMES), base_dir=tmp_path)
    assert [finding for finding in on_volumes if finding.rule == "file-missing"] == []
    in_image = ["model.path=/models/digits", "recipe.file=/app/digits.py", "dataset.train.jsonl=/data/train.jsonl"]
    here = {finding.field for finding in check(job(*in_image), base_dir=tmp_path) if finding.rule == "file-missing"}
    assert "spec.model.path" in here
    there = check(job(*in_image, "dataset.evaluation=null", "runtimeRef.name=cpu"), base_dir=tmp_path)
    assert [finding for finding in there if finding.rule == "file-missing"] == []


def test_an_object_of_the_server_is_read_as_the_file_that_made_it():
    values = read_document(QUICKSTART).values
    stored = values | {
        "metadata": {
            **values["metadata"],
            "uid": "5a",
            "resourceVersion": "7",
            "generation": 2,
            "creationTimestamp": "2026-11-21T02:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
            "ownerReferences": [],
            "labels": {"Example.com/no-label-key-of-ours": "x"},
            "annotations": {f"example.com/{number}": "" for number in range(300)},
        },
        "status": {"summary": "Running"},
    }
    read = job_from_object(stored)
    assert read.spec == job().spec
    assert read.metadata.name == "digits"


def test_a_wrong_object_is_refused_with_its_name_the_field_and_the_fix():
    values = read_document(QUICKSTART).values
    values["metadata"]["namespace"] = "team-a"
    values["spec"]["algorithm"]["maxStep"] = 3
    with pytest.raises(SpecError, match=r"RLJob team-a/digits: spec.algorithm.maxStep: .* did you mean maxSteps") as it:
        job_from_object(values)
    assert it.value.fix


def test_a_field_in_a_list_is_named_with_its_place_and_the_nearest(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(QUICKSTART.read_text() + "  failurePolicy:\n    rules:\n    - {name: a, acton: FailJob}\n")
    with pytest.raises(SpecError) as caught:
        load_job(path)
    problems = {problem.field: problem for problem in caught.value.problems}
    assert "did you mean action?" in problems["spec.failurePolicy.rules.0.acton"].message
    assert problems["spec.failurePolicy.rules.0.acton"].where == f"{path}:{len(path.read_text().splitlines())}"
    assert problems["spec.failurePolicy.rules.0.action"].message.startswith("missing: Restart the trainers")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("podTemplate.trainer.resources.limits={memory: 16GB}", "'16GB' is not an amount as Kubernetes writes it"),
        ("runtimeRef.name=My_Runtime", "'My_Runtime' is not a Kubernetes name"),
        ("podTemplate.worker.labels={team: team a}", "'team a' is not a label's value"),
        ("podTemplate.worker.nodeSelector={'-': x}", "'-' is not a label's key"),
        ("podTemplate.worker.env=[{name: 'a b'}]", "'a b' is not the name of an environment variable"),
    ],
)
def test_a_form_that_kubernetes_prescribes_is_said_in_words(override, says):
    with pytest.raises(SpecError) as caught:
        load_job(QUICKSTART, [override])
    assert says in str(caught.value)


def test_amounts_may_be_numbers():
    made = job("podTemplate.trainer.resources.limits={nvidia.com/gpu: 8, memory: 900Gi, cpu: '1.5'}")
    assert made.spec.pod_template.trainer.resources.limits == {"nvidia.com/gpu": "8", "memory": "900Gi", "cpu": "1.5"}


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *(("env", name) for name in ("AREAL_INDEX", "AREAL_LOG_FORMAT", "PET_NNODES", "RANK", "RANKING", "NCCL_DEBUG")),
        *(("labels", name) for name in ("areal.dev/role", "areal.development/x", "app.kubernetes.io/name", "team")),
        *(("labels", name) for name in ("app.kubernetes.io/version", "pod-template-hash", "batch.kubernetes.io/x")),
        *(("annotations", name) for name in ("areal.dev/x", "seccomp.security.alpha.kubernetes.io/pod", "note")),
    ],
)
def test_what_is_reserved_here_is_what_the_operator_refuses(field, name):
    value = [{"name": name, "value": "x"}] if field == "env" else {name: "x"}
    made = job(f"podTemplate={yaml.safe_dump({'worker': {field: value}}, default_flow_style=True)}")
    refuse = {"env": merge.refuse_env, "labels": merge.refuse_labels, "annotations": merge.refuse_annotations}[field]
    try:
        refuse([name], "field")
        theirs = False
    except ConfigError:
        theirs = True
    assert any(finding.field == "spec.podTemplate" for finding in check(made)) == theirs


def test_a_volume_is_as_the_job_says_else_the_runtime_else_the_default():
    runtime = RuntimeSpec.model_validate({"storage": {"size": "50Gi", "accessMode": "ReadWriteOnce"}})
    assert volume_of(job().spec, RuntimeSpec()).size_bytes == 20 << 30
    assert volume_of(job().spec, RuntimeSpec()).access_mode == "ReadWriteMany"
    assert volume_of(job().spec, runtime).size_bytes == 50 << 30
    own = volume_of(job("storage.size=5Gi", "storage.storageClassName=fast").spec, runtime)
    assert (own.size_bytes, own.storage_class_name, own.access_mode) == (5 << 30, "fast", "ReadWriteOnce")


def test_a_runtime_has_templates_by_role_and_safe_defaults():
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}
    runtime = runtime_from_object(
        RUNTIME | {"spec": {"roles": {"rewardCustom": {"template": template}}}, "status": {}}
    ).spec
    assert runtime.template_of("rewardCustom") == template
    assert runtime.template_of("reward-custom") == template
    assert runtime.template_of("trainer") == {}
    assert runtime.network_policy.mode == "Managed"
    assert runtime.network_policy.egress.worker == "Job"
    assert runtime.network_policy.egress.tools == "Open"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"template": {"spce": {}}}, "spec.template: a pod template has metadata and spec, not spce"),
        ({"template": {"spec": {"containers": [{"image": "a"}]}}}, "containers must be a list of mappings with a name"),
        ({"roles": {"trainers": {}}}, "spec.roles.trainers: unknown field; did you mean trainer?"),
        ({"networkPolicy": {"egress": {"worker": "All"}}}, "'All' is unknown"),
    ],
)
def test_a_wrong_runtime_is_refused_with_its_name_and_field(spec, says):
    with pytest.raises(ConfigError) as caught:
        runtime_from_object(RUNTIME | {"spec": spec})
    assert "ClusterRLRuntime cpu" in str(caught.value)
    assert says in str(caught.value)


def test_every_condition_and_reason_has_its_sentence():
    assert list(REASONS) == list(ConditionType)
    for word in [*ConditionType, *Summary, *(reason for reasons in REASONS.values() for reason in reasons)]:
        assert word.__doc__, word
        assert word.__doc__.endswith("."), word
    for reasons in REASONS.values():
        assert {"True", "False"} <= {reason.when for reason in reasons} <= {"True", "False", "Unknown"}
    words = {kind.__name__: [*kind] for kind in (ConditionType, *REASONS.values(), Summary)}
    assert {name: list(said) for name, said in read_table("areal.spec", "conditions.yaml").items()} == words


def test_the_page_of_conditions_is_what_the_code_says():
    assert CONDITIONS_PAGE.read_text() == render(), "run `make docs`"


def test_a_status_is_written_without_what_is_not_known_and_read_with_what_is_new():
    at = datetime(2026, 11, 21, 2, 0, 0, 500_000, tzinfo=UTC)
    accepted = REASONS[ConditionType.ACCEPTED]("Valid")
    condition = ConditionEntry(type=ConditionType.ACCEPTED, status="True", reason=accepted, last_transition_time=at)
    status = JobStatus(conditions=[condition], summary=Summary.RUNNING, start_time=at)
    written = status.model_dump(mode="json", exclude_none=True)
    assert written["startTime"] == "2026-11-21T02:00:00Z"
    assert written["conditions"][0]["reason"] == "Valid"
    assert "progress" not in written
    read = JobStatus.model_validate(written | {"newer": 1})
    assert read.holds(ConditionType.ACCEPTED)
    assert not read.holds(ConditionType.FAILED)
