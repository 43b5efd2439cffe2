"""Servers in the trainer's pod, where both have the same cards by turns: its template, its network, its conditions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from areal.admit.cluster import ClusterRefusal, roles_of
from areal.admit.pod_rules import refusal_by_runtime
from areal.plan.cluster_names import BESIDE, Role
from areal.spec.runtime import RuntimeSpec
from areal.spec.status import ConditionType
from areal_operator.operator import fault_owner
from areal_operator.operator.admission import RunnableJob
from areal_operator.operator.children import foundation, workloads
from areal_operator.operator.children.pods import pod_template
from areal_operator.operator.children.wanted import JobBlueprint
from areal_operator.operator.conditions import conditions
from areal_operator.operator.decide import decide
from areal_operator.operator.drift import inputs_hash
from operator_values import NOW, others, remembered, seen, trainer
from support.cluster_jobs import CPU_RUNTIME, GPU_RUNTIME, quickstart, wanted
from support.policies import passes
from test_operator_children_network import OPERATOR, PROMETHEUS, STRANGER, pod, policies

Json = dict[str, Any]

GPU = "nvidia.com/gpu"


def shared(replicas: int = 1, **changes: Json) -> Json:
    values = quickstart()
    spec = values["spec"] | {"placement": "shared", "generation": {"replicas": replicas}}
    spec["algorithm"] = {**spec["algorithm"], "maxStaleness": 1}
    for name, value in changes.items():
        spec[name] = {**spec.get(name, {}), **value}
    return {**values, "spec": spec}


def on_gpus(replicas: int, trainer: int, parts: int = 1) -> JobBlueprint:
    engine = {"engine": {"type": "sglang", "tensorParallel": parts, "gpus": parts}}
    return wanted(shared(replicas, generation={**engine, "replicas": replicas}, trainer={"gpus": trainer}), GPU_RUNTIME)


def main_of(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    return found


def test_one_pod_has_both_and_asks_for_the_cards_once() -> None:
    w = on_gpus(2, trainer=1)
    assert Role.GENERATION not in w.roles
    made = workloads(w)
    assert not [one for one in made if one["metadata"]["name"].endswith("-generation")]
    main = main_of(pod_template(w, Role.TRAINER))
    assert main["resources"]["limits"][GPU] == main["resources"]["requests"][GPU] == "2", "two servers have one each"
    assert main["image"] == "registry.test/areal-sglang:0.1.0", "the engine's image, which has a trainer, too"
    assert {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"} in main["env"], "all else is the trainer's"
    assert main["command"][3:5] == ["--role", "trainer"]
    assert main_of(pod_template(on_gpus(1, trainer=4), Role.TRAINER))["resources"]["limits"][GPU] == "4"


def test_its_pod_has_a_port_and_a_token_for_each_and_is_ready_when_all_servers_are() -> None:
    w = wanted(shared(2), CPU_RUNTIME)
    template = pod_template(w, Role.TRAINER)
    main = main_of(template)
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    served = {"grpc-0": 9010, "metrics-0": 9110, "grpc-1": 9011, "metrics-1": 9111}
    assert ports == {"grpc": 9000, "metrics": 9100, "rendezvous": 29500, "launcher": 9001, **served}
    assert main["readinessProbe"]["grpc"] == {"port": 9001, "service": BESIDE}
    assert main["livenessProbe"]["grpc"] == {"port": 9001}, "a server that starts again kills no trainer"
    (access,) = (volume for volume in template["spec"]["volumes"] if volume["name"] == "access")
    keys = {item["key"] for source in access["projected"]["sources"] for item in source["secret"]["items"]}
    assert keys == {"token.trainer", "token.generation", "digests.json", "trainer.password"}
    apart = wanted(quickstart(), CPU_RUNTIME)
    assert main_of(pod_template(apart, Role.TRAINER))["readinessProbe"]["grpc"] == {"port": 9001}
    assert w.resolved.ports_of("generation", 1) == {"grpc": 9011, "metrics": 9111, "engine": 30011}
    assert w.resolved.cards != w.resolved.layout.cards, "a lock of processes of one pod is on its own disk"


def test_calls_to_a_server_reach_it_in_the_trainer_s_pod_and_open_nothing_else() -> None:
    w = wanted(shared(2), CPU_RUNTIME)
    made = policies(w)
    ports = (9000, 9001, 9010, 9011, 9012, 9100, 9110, 9111, 9112, 29500, 30010)
    callers = {role.value: pod(w.name, role) for role in w.roles} | {
        "operator": OPERATOR, "monitoring": PROMETHEUS, "stranger": STRANGER,
    }  # fmt: skip
    there = pod(w.name, Role.TRAINER)
    reached = {
        (name, port)
        for (name, source), port in itertools.product(callers.items(), ports)
        if name != "trainer" and passes(made, source, there, port)
    }
    assert reached == {
        ("worker", 9010), ("worker", 9011), ("operator", 9000), ("operator", 9001), ("monitoring", 9100),
        ("monitoring", 9110), ("monitoring", 9111),
    }  # fmt: skip
    assert passes(made, there, pod(w.name, Role.CONTROLLER), 9000)
    assert not passes(made, there, pod(w.name, Role.REWARD_CUSTOM), 9000)
    assert len([one for one in foundation(w) if one["kind"] == "NetworkPolicy"]) == len(w.roles) + 2


def test_what_would_be_said_to_pods_that_there_are_none_of_is_refused() -> None:
    with pytest.raises(ClusterRefusal, match="processes of the trainer's pod") as refused:
        wanted(shared(podTemplate={"generation": {"labels": {"team": "a"}}}), CPU_RUNTIME)
    assert refused.value.reason == "SharedPlacement"
    assert "podTemplate.trainer" in refused.value.fix


def test_the_platform_s_bound_is_of_the_whole_pod() -> None:
    runtime = RuntimeSpec.model_validate({**GPU_RUNTIME, "devices": {"perPod": 4}})
    assert refusal_by_runtime(on_gpus(4, trainer=1).job, runtime) is None
    assert "perPod 4" in (refusal_by_runtime(on_gpus(4, trainer=1, parts=2).job, runtime) or "")


def admitted(w: JobBlueprint) -> RunnableJob:
    return RunnableJob(w.job, w.resolved, w.runtime, "", roles_of(w.resolved))


def test_another_number_of_servers_is_another_pod_only_where_they_share_it() -> None:
    one, two = (inputs_hash(admitted(wanted(shared(count), CPU_RUNTIME))) for count in (1, 2))
    assert one != two
    apart = [quickstart(), quickstart()]
    apart[1]["spec"]["generation"] = {"replicas": 2}
    one, two = (inputs_hash(admitted(wanted(values, CPU_RUNTIME))) for values in apart)
    assert one == two


def test_servers_answer_where_the_trainer_s_pod_is_ready() -> None:
    spec = {"placement": "shared", "trainer": {"replicas": 1}}
    for ready, reason in ((True, "AllReplicasReady"), (False, "NoReplicaReady")):
        base = seen(remembered(members=("t0",)), spec=spec, pods=(trainer(0, ready=ready), *others()))
        decision = decide(base, NOW)
        said = conditions(base, decision, decision.state, NOW)
        assert said[ConditionType.GENERATION_READY].reason == reason
        lack = fault_owner.lack_of(base, base.admitted.replicas)
        assert (lack is None) is ready, "the trainers' stall is charged to nobody while no server answers"
        assert lack is None or "no server answers" in lack.text
