"""The definitions in a real API server: verdicts and defaults of `areal check`, what may not change, what is shown."""

from __future__ import annotations

import copy
import os
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.errors import ConfigError
from areal.spec import RULES, Severity, check, job_from_object, load_job
from areal.spec.block import Mutability
from areal.spec.crd import definitions
from areal.spec.crd.definition import change_validations
from areal.spec.job import JobSpec
from areal.spec.runtime import runtime_from_object
from areal.spec.status import REASONS, ConditionType, JobStatus
from kube.harness.client import Client, Refused
from kube.harness.processes import eventually
from spec_corpus import CORPUS, cases
from spec_generator import generate
from spec_server import create, verdicts

pytestmark = pytest.mark.kube_api

Object = dict[str, Any]
API = "areal.dev/v1alpha1"
WITH_CEL = {rule.id for rule in RULES if rule.cel is not None}
BEYOND_THE_SERVER = {  # refused by `areal check` for what no API server knows
    **dict.fromkeys(("foreign-tokenizer", "context-too-short", "supervised-context"), "the model's files"),
    **dict.fromkeys(("heads-that-do-not-split", "tensor-of-few-heads", "context-of-few-heads"), "the model's heads"),
    **dict.fromkeys(("lora-of-missing-layers", "lora-of-query-alone", "lora-without-room"), "layers, the engine"),
    **dict.fromkeys(("math-without-answers", "prompt-too-long"), "the dataset's rows"),
    **dict.fromkeys(("agent-command-not-here", "python-not-here"), "the programs of a machine"),
    **dict.fromkeys(("recipe-without-reward", "two-rewards", "unknown-workflow", "agent-not-in-recipe"), "the recipe"),
    **dict.fromkeys(("sglang-flag-unknown", "sglang-quantised", "sglang-speculates"), "SGLang's flags"),
    "export-by-nothing": "names of figures: building them costs an API server too much",
    "training-without-roles": "which blocks were given: the server fills in the defaults of all",
    **dict.fromkeys(("gpus-for-the-embedded-engine", "gpus-of-trainer-pods-twice"), "what each role's pods ask for"),
    **dict.fromkeys(
        (
            "clip-low-of-one", "divergence-without-dppo", "dppo-with-a-rejection", "kl-in-reward-without-a-pass",
            "kl-k1-as-loss", "kl-k3u-as-reward", "leave-one-out-of-batch", "leave-one-out-without-a-mean",
            "mask-by-packing", "masked-without-group-mean", "max-from-below", "mean-as-scale-of-negative-rewards",
            "overlong-in-turns", "overlong-window-too-wide", "rejects-everything", "rejects-its-own-policy",
            "rejects-nothing", "teacher-filters-groups", "teacher-in-the-training-pass", "weights-upside-down",
        ),
        "the values in force, which the algorithm's name decides",
    ),
}  # fmt: skip
PLAIN_REFUSALS = {  # refused before any field is looked at, in the words of the YAML and JSON readers
    "not-a-number": "NaN",
    "wrong-version": "strict decoding error",
    "written-twice": "already set in map",
}


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: Any) -> None:
    """The definitions, served."""
    admin = cluster.admin
    for definition in definitions().values():
        admin.apply(definition, manager="areal-crds")
    for name in definitions():

        def established(name: str = name) -> bool:
            found = admin.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name)
            conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", [])}
            return conditions.get("Established") == "True"

        eventually(established, f"{name} served")


@pytest.fixture
def post(admin: Client, namespace: str) -> Callable[..., Object]:
    """`create` in the test's namespace."""
    return partial(create, admin, namespace)


@pytest.fixture(scope="module")
def judged(admin: Client, installed: None) -> dict[str, Object | Refused]:
    """The server's verdict on each file of the corpus, by its name."""
    files = [case.path for kind in ("accepted", "refused") for case in cases(kind)]
    found = verdicts(admin, "default", [path.read_text() for path in files])
    return dict(zip((str(path) for path in files), found, strict=True))


@pytest.fixture
def job(post: Callable[..., Object]) -> Object:
    """A job with something in every optional place that matters, in the server."""
    values = yaml.safe_load((CORPUS / "accepted" / "cluster-blocks.yaml").read_text())
    spec = values["spec"]
    spec["algorithm"]["clipHigh"] = 0.3
    spec["generation"] = {"engine": {"type": "sglang", "extraArgs": ["--log-level=info"]}, "replicas": 2}
    spec["trainer"] = {"packLength": 1024, "hooks": "pvc://code/hooks.py"}
    spec["reward"] = {"verifier": "code", "code": {"minTier": "T3", "needs": ["fork"]}}
    spec["rollout"]["chatTemplate"] = False
    spec["replay"] = {"backend": "External", "external": {"secretName": "redis-urls"}}
    return post(yaml.safe_dump(values), keep=True)


@pytest.mark.parametrize("case", cases("accepted"), ids=lambda case: case.path.stem)
def test_the_server_accepts_what_check_accepts_and_fills_in_the_models_defaults(case, judged):
    stored = judged[str(case.path)]
    assert isinstance(stored, dict), stored
    assert job_from_object(stored).spec == load_job(case.path).spec


@pytest.mark.parametrize("case", cases("refused"), ids=lambda case: case.path.stem)
def test_the_server_refuses_what_check_refuses_and_names_field_and_fix(case, judged):
    name, said = case.path.stem, judged[str(case.path)]
    if name in BEYOND_THE_SERVER:
        assert isinstance(said, dict), said
        return
    assert isinstance(said, Refused)
    message = re.sub(r"podTemplate\[(\w+)\]", r"podTemplate.\1", said.message)  # a key, where a rule says it
    if name in PLAIN_REFUSALS:
        assert PLAIN_REFUSALS[name] in message
        return
    for field in case.fields:
        block, _, last = re.sub(r"\.(\d+)", r"[\1]", field).rpartition(".")
        assert (
            f"{block}.{last}" in message
            or f"{block}[{last}]" in message
            or (block in message and f"{last} is a field of" in message)
            or (block in message and "A key is one of" in message)
            or (block == "" and last in message)
        )
    for broken in (rule for rule in RULES if rule.id in case.rules):
        assert f"{broken.says} {broken.fix}" in message
        assert broken.field in message or broken.field == "metadata.name"


def test_what_only_check_can_refuse_is_known_by_name():
    refused = {case.path.stem: case for case in cases("refused")}
    assert refused.keys() >= BEYOND_THE_SERVER.keys()
    without_cel = {name for name, case in refused.items() if case.rules and not WITH_CEL & set(case.rules)}
    assert without_cel <= BEYOND_THE_SERVER.keys()
    assert len(refused.keys() - BEYOND_THE_SERVER.keys()) >= 100


def another(schema: Object, value: Any) -> Any:
    """A value that the schema allows and that isn't `value`; None when there is none."""
    if "enum" in schema:
        return next((choice for choice in schema["enum"] if choice != value), None)
    if schema.get("x-kubernetes-int-or-string"):
        return "3Gi"
    kind = schema["type"]
    if kind == "boolean":
        return not value
    if kind in ("integer", "number"):
        if value is None:
            return schema.get("minimum", 0) + 1
        larger = value * 2 or 1
        return larger if larger <= schema.get("maximum", larger) else value / 2
    if kind == "array":
        return [another(schema["items"], item) for item in value]
    if kind == "object":
        return {name: another(schema["properties"][name], inner) for name, inner in value.items()}
    return f"{value}x"


def spec_schema(path: str) -> Object:
    version = definitions()["rljobs.areal.dev"]["spec"]["versions"][0]
    schema: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema


def nested(path: str, value: Any) -> Object:
    for name in reversed(path.split(".")):
        value = {name: value}
    return {"spec": value}


def value_at(job: Object, path: str) -> Any:
    value = job["spec"]
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


BY_HAND = {  # other values of blocks, whose fields depend on each other
    "model": {"path": "models/other"},
    "recipe": {"file": "other.py"},
    "reward.weights": {"correct": 1.0},
    "dataset": {"evaluation": None},
    "algorithm.advanced": {"gamma": 0.9},
    "optimizer": {"betas": [0.8, 0.9]},
    "algorithm.kl": {"coefficient": 0.1},
    "algorithm.critic": {"loss": "huber"},
    **{f"rollout.{block}": {field: "other"} for block, field in (("agent", "run"), ("environment", "name"))},
    **{model: {"path": "other"} for model in ("reward.model", "training.teacher", "algorithm.teacher")},
    "algorithm.overlong": {"window": 4},
    "evaluation": {"rows": 3},
    "observability": {"traces": {"sampleRate": 0.5}},
    "trainer.mesh": {"replicate": 2, "tensor": 1, "context": 1},
    "trainer.lora": {"rank": 4},
    "storage": {"size": "300Gi"},
    "podTemplate": {"worker": {"labels": {"a": "b"}}},
    **dict.fromkeys(("generation.engine.tensorParallel", "generation.engine.gpus"), 2),
    **dict.fromkeys(("training.labelSmoothing", "training.teacherShare"), 0.1),
    "generation.engine.contextLength": 4096,
    "generation.engine.memFraction": 0.5,
    "generation.engine.python": "/opt/engine/bin/python",
    "storage.cacheClaimName": "kernels",
    **{path: {"intervalSteps": 2} for path in ("weightSync", "export")},
    "scheduling": {"exclusiveNodes": False},
    "runtimeRef": {"name": "other"},
    "replay.external": {"secretName": "other"},
}
SUPERVISED = {  # a field of one training alone → a job of it
    **dict.fromkeys(("loss", "beta", "labelSmoothing", "nllWeight"), "dpo"),
    **dict.fromkeys(("marginField", "centeringWeight"), "reward-model"),
    **dict.fromkeys(("teacher", "divergence", "teacherShare", "temperature"), "distillation"),
}
ONE_VALUE = {"algorithm.name", "training.name"}  # another one asks for other fields
FIXED = {
    rule["fieldPath"].removeprefix("."): Mutability.NEVER if "never changes" in rule["message"] else Mutability.RESUME
    for rule in change_validations(JobSpec)
}


@pytest.mark.parametrize("path", sorted(FIXED.keys() - ONE_VALUE))
def test_what_a_run_is_never_changes_and_what_its_pods_are_made_of_only_while_it_rests(path, admin, post, job):
    block, _, field = path.partition(".")
    if block == "training":
        job = post((CORPUS / "accepted" / f"{SUPERVISED.get(field, 'supervised-batch')}.yaml").read_text(), keep=True)
    value = BY_HAND[path] if path in BY_HAND else another(spec_schema(path), value_at(job, path))
    with pytest.raises(Refused) as caught:
        admin.patch(job, nested(path, value))
    fixed = FIXED[path] is Mutability.NEVER
    said = "never changes. Make a new job" if fixed else "changes only while the job is suspended"
    assert f"spec.{path}: " in caught.value.message
    assert f"{path} {said}" in caught.value.message


def test_a_job_at_rest_takes_what_its_pods_are_made_of(admin, job):
    change: Object = {"suspend": True}
    own = {path for path, kind in FIXED.items() if kind is Mutability.RESUME and not path.startswith("training.")}
    for path in sorted(own - {"generation.engine.cacheMemory", "placement", "rollout.rounds"}):  # of other jobs
        value = BY_HAND[path] if path in BY_HAND else another(spec_schema(path), value_at(job, path))
        merge(change, nested(path, value)["spec"])
    trainer = change["trainer"]
    trainer["procPerNode"] = trainer["gpus"]
    trainer["mesh"] = {"replicate": trainer["replicas"]}
    rested = admin.patch(job, {"spec": change})
    assert rested["spec"]["podTemplate"]["worker"]["labels"] == {"a": "b"}
    resumed = admin.patch(job, {"spec": {"suspend": False}})
    assert resumed["spec"]["trainer"]["replicas"] == 2
    with pytest.raises(Refused, match=r"trainer\.replicas changes only while the job is suspended"):
        admin.patch(job, {"spec": {"trainer": {"replicas": 1, "mesh": None}}})


def merge(into: Object, change: Object) -> None:
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


@pytest.mark.parametrize(
    "path",
    [
        "algorithm.clipHigh",
        "algorithm.advanced.rejection",
        "recipe",
        "dataset.evaluation",
        "reward.verifier",
        "rollout.chatTemplate",
        "trainer.hooks",
        "replay.external",
        "runtimeRef",
        "storage",
    ],
)
def test_removing_and_adding_an_optional_field_is_a_change(path, admin, namespace, job):
    if path != "algorithm.advanced.rejection":
        with pytest.raises(Refused, match="never changes"):
            admin.patch(job, nested(path, None))
    bare = copy.deepcopy(job)
    bare["metadata"] = {"name": "bare", "namespace": namespace}
    holder = bare["spec"]
    *parents, last = path.split(".")
    for name in parents:
        holder = holder[name]
    value = holder[last]
    holder[last] = None
    together = {
        "replay.external": ("replay", None),
        "dataset.evaluation": ("evaluation", None),
        "reward.verifier": ("reward", {}),  # with its settings
    }
    for name, other in together.items():
        if name == path:
            bare["spec"][other[0]] = other[1]
    made = admin.create(bare)
    with pytest.raises(Refused, match="never changes"):
        admin.patch(made, nested(path, value))


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"maxSteps": 320, "maxStaleness": 3}},
        {"rollout": {"maxConcurrentRollouts": 192}},
        {"generation": {"replicas": 4}},
        {"reward": {"replicas": 3}},
        {"suspend": True},
        {"runPolicy": {"stallTimeoutSeconds": 60, "activeDeadlineSeconds": None, "cleanup": []}},
        {"failurePolicy": {"maxRestarts": 0, "rules": []}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_hot_changes_while_the_job_runs(change, admin, job):
    changed = admin.patch(job, {"spec": change})
    assert changed["metadata"]["generation"] == job["metadata"]["generation"] + 1


def test_a_null_that_says_something_is_kept_by_create_and_apply_and_can_t_replace_a_value(admin, namespace, job):
    values = yaml.safe_load((CORPUS / "accepted" / "no-rejection.yaml").read_text())
    values["metadata"] = {"name": "applied", "namespace": namespace}
    applied = admin.apply(values, manager="author")
    assert applied["spec"]["algorithm"]["advanced"]["rejection"] is None
    assert job_from_object(applied).spec.algorithm.advanced.rejection is None
    changed = copy.deepcopy(job)
    changed["spec"]["algorithm"]["advanced"]["rejection"] = None
    path = f"/apis/{API}/namespaces/{namespace}/rljobs/digits"
    with pytest.raises(Refused, match=r"algorithm\.advanced never changes"):
        admin.raw("PUT", path, json=changed)


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [
        ("replay.budgetBytes", "2Gi", 2 << 30),
        ("replay.budgetBytes", 2 << 30, "2048Mi"),
        ("storage.size", "30Gi", 30 << 30),
    ],
)
def test_another_spelling_of_a_size_is_no_change(path, first, second, admin, namespace):
    values = yaml.safe_load((CORPUS / "accepted" / "quickstart.yaml").read_text())
    values["metadata"] = {"name": "spelled", "namespace": namespace}
    merge(values, nested(path, first))
    made = admin.create(values)
    changed = admin.patch(made, nested(path, second))
    assert value_at(changed, path) == second
    with pytest.raises(Refused, match=r"changes only while|never changes"):
        admin.patch(made, nested(path, "3Gi"))


def test_applying_the_same_file_again_changes_nothing(admin, post, namespace):
    values = yaml.safe_load((CORPUS / "accepted" / "quickstart.yaml").read_text())
    values["metadata"]["namespace"] = namespace
    first = admin.apply(values, manager="author")
    again = admin.apply(values, manager="author")
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


@pytest.mark.parametrize("name", ["Digits", "9-digits", "d" * 41, "digits.two"])
def test_a_name_that_pods_can_t_have_is_refused(name, post):
    text = (CORPUS / "accepted" / "quickstart.yaml").read_text().replace("name: digits", f"name: {name!r}")
    with pytest.raises(Refused, match=r"metadata\.name"):
        post(text)


def test_an_unknown_field_is_refused_by_name_or_left_out_where_that_is_asked_for(post):
    text = (CORPUS / "refused" / "unknown-field.yaml").read_text()
    with pytest.raises(Refused, match=r'unknown field "spec\.algorithm\.maxStep"'):
        post(text)
    assert "maxStep" not in post(text, validation="Ignore")["spec"]["algorithm"]


def test_a_status_is_what_the_operator_writes_and_columns_show_it(admin, job, kubectl, namespace):
    status = JobStatus.model_validate(
        {
            "conditions": [
                {
                    "type": kind,
                    "status": next(iter(reasons)).when,
                    "reason": next(iter(reasons)),
                    "lastTransitionTime": "2026-11-21T02:00:00Z",
                    "observedGeneration": 1,
                }
                for kind, reasons in REASONS.items()
            ],
            "observedGeneration": 1,
            "summary": "Running",
            "generation": {"replicas": 2, "readyReplicas": 1, "selector": "areal.dev/rljob=digits"},
            "roles": [{"name": "trainer", "desired": 1, "ready": 1}],
            "progress": {"step": 120, "maxSteps": 160, "policyVersion": 119, "reward": 0.73},
            "attempts": {"epoch": 2, "restarts": 1},
            "failures": [{"time": "2026-11-21T02:00:00Z", "role": "trainer", "exitCode": 137, "step": 97}],
            "audit": {"ok": True, "tombstones": {"infra": 2}},
        }
    )
    written = admin.apply(
        {"apiVersion": API, "kind": "RLJob", "metadata": {"name": "digits", "namespace": namespace}}
        | {"status": status.model_dump(mode="json", exclude_none=True)},
        manager="areal-operator",
        subresource="status",
    )
    assert JobStatus.model_validate(written["status"]) == status
    assert JobStatus.model_validate(written["status"]).holds(ConditionType.ACCEPTED)
    heading, row = kubectl("get", "rlj", namespace=namespace).stdout.splitlines()
    assert heading.split() == ["NAME", "STATUS", "STEP", "POLICY", "REWARD", "GEN", "RESTARTS", "AGE"]
    assert row.split()[:-1] == ["digits", "Running", "120", "119", "0.73", "1", "1"]
    assert "digits" in kubectl("get", "areal", namespace=namespace).stdout


def test_scale_reads_and_sets_the_generation_fleet(admin, job, kubectl, namespace):
    path = f"/apis/{API}/namespaces/{namespace}/rljobs/digits/scale"
    assert admin.raw("GET", path)["spec"] == {"replicas": 2}
    kubectl("scale", "rljob/digits", "--replicas=5", namespace=namespace)
    assert admin.get(API, "RLJob", namespace, "digits")["spec"]["generation"]["replicas"] == 5


def test_explain_says_what_a_field_means_and_its_unit(kubectl):
    said = kubectl("explain", "rljob.spec.algorithm.maxStaleness").stdout
    assert "No trained token is older than this many versions" in " ".join(said.split())
    assert "maxRestarts" in kubectl("explain", "rljob.spec.failurePolicy").stdout
    assert "networkPolicy" in kubectl("explain", "clusterrlruntime.spec").stdout


@pytest.mark.parametrize("kind", ["ClusterRLRuntime", "RLRuntime"])
def test_a_runtime_keeps_its_templates_and_gets_the_models_defaults(kind, admin, namespace):
    container = {"name": "main", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    made = {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": f"cpu-{namespace}", "namespace": namespace},
        "spec": {
            "description": "For machines without GPUs",
            "template": {"metadata": {"labels": {"team": "a"}}, "spec": {"runtimeClassName": "gvisor"}},
            "roles": {"trainer": {"template": {"spec": {"containers": [container]}}}},
            "networkPolicy": {"egress": {"worker": "Open"}},
        },
    }
    if kind == "ClusterRLRuntime":
        del made["metadata"]["namespace"]
    stored = admin.create(made, dry_run=True)
    assert runtime_from_object(stored).spec == runtime_from_object(made).spec
    assert stored["spec"]["roles"]["trainer"]["template"]["spec"]["containers"] == [container]
    assert stored["spec"]["networkPolicy"]["egress"]["tools"] == "Open"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"roles": {"trainer": {"template": {"spec": {"containers": [{"image": "a"}]}}}}}, r"containers\[0\]\.name"),
        ({"networkPolicy": {"mode": "Off"}}, r"spec\.networkPolicy\.mode"),
        ({"storage": {"size": "1KB"}}, r"spec\.storage\.size"),
    ],
)
def test_a_wrong_runtime_is_refused_by_field(spec, field, admin):
    made = {"apiVersion": API, "kind": "ClusterRLRuntime", "metadata": {"name": "wrong"}, "spec": spec}
    with pytest.raises(Refused, match=field):
        admin.create(made, dry_run=True)


def refused_here(text: str, path: Path) -> str:
    """Why `areal check` refuses a file, for reasons that an API server could know; nothing when it doesn't."""
    path.write_text(text)
    try:
        findings = check(load_job(path))
    except ConfigError as error:
        return str(error)
    return "; ".join(str(each) for each in findings if each.severity is Severity.ERROR and each.rule in WITH_CEL)


@pytest.mark.parametrize("seed", range(int(os.environ.get("AREAL_GENERATED_SPECS", "200")) // 100))
def test_generated_files_get_one_verdict_and_mean_one_thing(seed, admin, namespace, tmp_path):
    random_, path, apart = random.Random(seed), tmp_path / "job.yaml", []
    made = [generate(random_) for _ in range(100)]
    for (text, odd), said in zip(made, verdicts(admin, namespace, [text for text, _ in made]), strict=True):
        here, there = refused_here(text, path), said.message if isinstance(said, Refused) else ""
        if bool(here) != bool(there):
            apart.append(f"{odd}\n  here: {here or 'accepted'}\n  server: {there or 'accepted'}")
        elif isinstance(said, dict) and job_from_object(said).spec != load_job(path).spec:
            apart.append(f"{odd}\n  here and in the server it means two things")
    assert apart == [], "\n".join(apart)


@pytest.mark.parametrize("case", cases("accepted"), ids=lambda case: case.path.stem)
def test_check_accepts_what_a_cluster_gives_back(case, post, kubectl, namespace, tmp_path):
    made = post(case.path.read_text(), keep=True)
    asked = ("get", "rljob", made["metadata"]["name"], "-o", "yaml", "--show-managed-fields")
    given = kubectl(*asked, namespace=namespace)
    assert "managedFields" in given.stdout
    path = tmp_path / "job.yaml"
    assert refused_here(given.stdout, path) == ""
    assert load_job(path).spec == load_job(case.path).spec
