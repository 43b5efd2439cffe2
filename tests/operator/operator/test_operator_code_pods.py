"""What reward pods can offer to programs, and the jobs that are refused because theirs can't judge them."""

from __future__ import annotations

from typing import Any

import pytest
from areal.admit.pod_rules import TierOffer, kernel_of, offer_of
from areal.plan.cluster_names import ENV_SANDBOX_KERNEL, Role
from areal.spec.code_tiers import POD_LIMIT, bytes_of_one, slots_of_memory
from areal.spec.load import job_from_object
from areal.spec.quantity import parse_bytes
from areal.spec.runtime import RuntimeSandbox, RuntimeSpec
from areal_operator.operator.admission import JobRefusal, Material, RunnableJob, admit
from areal_operator.operator.children import JobBlueprint
from areal_operator.operator.children.pods import pod_template
from support.operator_jobs import job_object
from support.restricted import problems

Json = dict[str, Any]
IMAGE: Json = {"template": {"spec": {"containers": [{"name": "main", "image": "registry.test/areal:0.1.0"}]}}}
NAMESPACED: Json = {
    "hostUsers": False,
    "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
    "containers": [{"name": "main", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}],
}


def runtime(reward_pod: Json | None = None, **sandbox: Any) -> RuntimeSpec:
    return RuntimeSpec.model_validate(
        {**IMAGE, "roles": {"reward": {"template": {"spec": reward_pod or {}}}}, "sandbox": sandbox}
    )


def code_job(runtime_class: str | None = None, **code: Any) -> Json:
    patch = {"podTemplate": {"reward": {"runtimeClassName": runtime_class}}} if runtime_class else {}
    raw = job_object(reward={"verifier": "code", "code": code} if code else {"verifier": "code"}, **patch)
    raw["metadata"]["uid"] = "job-uid"
    return raw


def asked(raw: Json, platform: RuntimeSpec) -> RunnableJob | JobRefusal:
    return admit(raw, job_from_object(raw), Material(platform))


def reward_pod(raw: Json, platform: RuntimeSpec, role: Role = Role.REWARD) -> Json:
    found = asked(raw, platform)
    assert isinstance(found, RunnableJob), found
    made: Json = pod_template(JobBlueprint(found.job, raw, platform, found.resolved, {}, ""), role)["spec"]
    return made


def environment(spec: Json) -> dict[str, str | None]:
    main = next(c for c in spec["containers"] if c["name"] == "main")
    return {variable["name"]: variable.get("value") for variable in main["env"]}


def test_the_pod_of_the_reward_service_is_restricted_and_offers_one_process_without_files() -> None:
    spec = reward_pod(code_job(), runtime())
    main = next(c for c in spec["containers"] if c["name"] == "main")
    assert problems(spec) == []
    assert main["securityContext"]["readOnlyRootFilesystem"] is True
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert offer_of(spec, RuntimeSandbox()) == TierOffer("T2", "host")


def resources(spec: Json) -> Json:
    found: Json = next(c for c in spec["containers"] if c["name"] == "main")["resources"]
    return found


def toolchains(spec: Json) -> Json | None:
    """The volume at the place where what is made once for a toolchain lies."""
    main = next(c for c in spec["containers"] if c["name"] == "main")
    name = next((mount["name"] for mount in main["volumeMounts"] if mount["mountPath"] == "/var/tmp"), None)
    return next((volume for volume in spec["volumes"] if volume["name"] == name), None)


def test_a_pod_that_judges_programs_has_memory_for_several_unless_somebody_says_otherwise() -> None:
    assert resources(reward_pod(code_job(), runtime()))["limits"]["memory"] == POD_LIMIT
    assert slots_of_memory(parse_bytes(POD_LIMIT), bytes_of_one("python", "auto")) == 6
    assert slots_of_memory(parse_bytes(POD_LIMIT), bytes_of_one("cpp", "auto")) == 3
    math = job_object(reward={"verifier": "math"})
    math["metadata"]["uid"] = "job-uid"
    assert resources(reward_pod(math, runtime()))["limits"]["memory"] == "1Gi"
    platform = {"containers": [{"name": "main", "resources": {"limits": {"memory": "8Gi"}}}]}
    assert resources(reward_pod(code_job(), runtime(platform)))["limits"]["memory"] == "8Gi"
    own = code_job()
    own["spec"]["podTemplate"] = {"reward": {"resources": {"limits": {"memory": "2Gi"}}}}
    assert resources(reward_pod(own, runtime(platform)))["limits"]["memory"] == "2Gi"


def test_toolchains_have_a_bounded_place_where_programs_are_not_python() -> None:
    spec = reward_pod(code_job("gvisor", minTier="T4", language="cpp"), runtime())
    assert toolchains(spec) == {"name": "toolchains", "emptyDir": {"sizeLimit": "512Mi"}}
    assert problems(spec) == []
    for without in (code_job(), code_job("gvisor", minTier="T4", needs=["scratch"])):
        assert toolchains(reward_pod(without, runtime())) is None
    assert toolchains(reward_pod(code_job("gvisor", language="cpp", minTier="T4"), runtime(), Role.WORKER)) is None


def test_a_platform_s_own_place_for_toolchains_is_kept() -> None:
    own = {
        "containers": [{"name": "main", "volumeMounts": [{"name": "fast", "mountPath": "/var/tmp"}]}],
        "volumes": [{"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    }
    spec = reward_pod(code_job("gvisor", minTier="T4", language="go"), runtime(own))
    assert toolchains(spec) == {"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}


@pytest.mark.parametrize(
    ("runtime_class", "kernel"), [(None, "host"), ("nvidia", "host"), ("gvisor", "gvisor"), ("kata-qemu", "kata")]
)
def test_whose_kernel_a_pod_has_is_what_the_platform_says_of_its_class(runtime_class: str | None, kernel: str) -> None:
    listed = RuntimeSandbox.model_validate({"virtualMachines": ["kata-qemu"]})
    assert kernel_of(runtime_class, listed) == kernel
    assert kernel_of("kata-qemu", RuntimeSandbox()) == "host"


def test_a_pod_is_told_that_it_is_a_virtual_machine_only_when_its_class_is_listed() -> None:
    listed = runtime(virtualMachines=["kata"])
    assert environment(reward_pod(code_job("kata"), listed))[ENV_SANDBOX_KERNEL] == "kata"
    for raw, platform in ((code_job("kata"), runtime()), (code_job("gvisor"), listed), (code_job(), listed)):
        assert ENV_SANDBOX_KERNEL not in environment(reward_pod(raw, platform))
    assert ENV_SANDBOX_KERNEL not in environment(reward_pod(code_job("kata"), listed, Role.CONTROLLER))


@pytest.mark.parametrize(
    ("pod", "offer"),
    [
        ({}, TierOffer("T2", "host")),
        ({"runtimeClassName": "gvisor"}, TierOffer("T4", "gvisor")),
        (NAMESPACED, TierOffer("T3", "host")),
        ({**NAMESPACED, "runtimeClassName": "gvisor"}, TierOffer("T4", "gvisor")),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, TierOffer("T3", "host")),
        ({"containers": [{"name": "main", "securityContext": {"privileged": True}}]}, TierOffer("T3", "host")),
        ({"securityContext": {"runAsUser": 0}}, TierOffer("T2", "host")),
    ],
)
def test_an_offer_follows_from_the_platforms_pod(pod: Json, offer: TierOffer) -> None:
    platform = runtime(pod)
    assert offer_of(reward_pod(code_job(), platform), platform.sandbox) == offer


@pytest.mark.parametrize(
    ("raw", "platform"),
    [
        (code_job(), runtime()),
        (code_job("gvisor", minTier="T4"), runtime()),
        (code_job("kata", minTier="T4"), runtime(virtualMachines=["kata"])),
        (code_job(minTier="T3", language="cpp"), runtime(NAMESPACED)),
        (code_job("gvisor", minTier="T3", needs=["fork", "scratch"]), runtime()),
        (code_job("gvisor", minTier="T4", language="cpp"), runtime()),
        (code_job(minTier="T3"), runtime({"runtimeClassName": "gvisor"})),
        (job_object(reward={"verifier": "math"}), runtime()),
    ],
)
def test_jobs_that_their_pods_can_judge_are_admitted(raw: Json, platform: RuntimeSpec) -> None:
    raw["metadata"].setdefault("uid", "job-uid")
    assert isinstance(asked(raw, platform), RunnableJob)


@pytest.mark.parametrize(
    ("raw", "platform", "words"),
    [
        (code_job(minTier="T4"), runtime(), ("minTier is T4, but its reward pods offer T2", "runtimeClassName")),
        (code_job("kata", minTier="T4"), runtime(), ("offer T2", "Kata")),
        (code_job(minTier="T3"), runtime(), ("minTier is T3, but its reward pods offer T2", "SYS_ADMIN")),
        (code_job(minTier="T3", language="cpp"), runtime(), ("minTier is T3, but its reward pods offer T2", "gVisor")),
    ],
)
def test_jobs_that_their_pods_could_never_judge_are_refused_with_the_fix(
    raw: Json, platform: RuntimeSpec, words: tuple[str, ...]
) -> None:
    refused = asked(raw, platform)
    assert isinstance(refused, JobRefusal)
    assert refused.reason == "NotAvailable"
    for word in words:
        assert word in refused.message


def boxed_job(runtime_class: str | None = None) -> Json:
    patch = {"podTemplate": {"reward": {"runtimeClassName": runtime_class}}} if runtime_class else {}
    raw = job_object(rollout={"boxes": {"maxConcurrent": 8}}, **patch)
    raw["metadata"]["uid"] = "job-uid"
    return raw


def test_boxes_are_in_a_pod_like_the_reward_service_s_that_may_have_namespaces() -> None:
    for raw, platform in ((boxed_job(), runtime(NAMESPACED)), (boxed_job("gvisor"), runtime())):
        spec = reward_pod(raw, platform, Role.BOXES)
        assert resources(spec)["limits"]["memory"] == POD_LIMIT
        assert environment(spec)["HOME"] == "/tmp"
    listed = runtime(virtualMachines=["kata"])
    assert environment(reward_pod(boxed_job("kata"), listed, Role.BOXES))[ENV_SANDBOX_KERNEL] == "kata"


def test_a_job_whose_boxes_could_never_be_is_refused_with_the_fix() -> None:
    refused = asked(boxed_job(), runtime())
    assert isinstance(refused, JobRefusal)
    for word in ("rollout.boxes needs tier T3, but the pod of boxes offers T2", "gVisor", "SYS_ADMIN"):
        assert word in refused.message
