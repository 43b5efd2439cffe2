"""Who may call whom: the policies of two jobs, asked as an enforcer would, against the table of calls."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
from areal.plan.cluster_names import Role, role_labels
from areal.plan.role_specs import Outsider, batch_jobs, spec_of
from areal_operator.operator.children import foundation, workloads
from areal_operator.operator.children.network import OPERATOR_LABELS, NetworkCall, as_markdown, calls
from areal_operator.operator.children.wanted import JobBlueprint
from support.cluster_jobs import CPU_RUNTIME, GPU_RUNTIME, large, large_wanted, quickstart, quickstart_wanted, wanted
from support.policies import Pod, passes, selects

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
PORTS_TRIED = (53, 6379, 8000, 9000, 9001, 9100, 29500, 30000, 41234)
SYSTEM = {"kubernetes.io/metadata.name": "areal-system"}
OPERATOR = Pod("areal-system", OPERATOR_LABELS, SYSTEM)
PROMETHEUS = Pod("monitoring", {"app": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"})
STRANGER = Pod("team-a", {"app": "notebook"}, {"kubernetes.io/metadata.name": "team-a"})
AGENTS = Pod("team-a", {"areal.dev/agents-of": "digits"}, {"kubernetes.io/metadata.name": "team-a"})
DNS = Pod("kube-system", {"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"})
INTERNET = Pod("somewhere", {}, {})


def policies(*jobs: JobBlueprint) -> list[Json]:
    return [one for w in jobs for one in foundation(w) if one["kind"] == "NetworkPolicy"]


def pod(job: str, role: Role, namespace: str = "team-a") -> Pod:
    return Pod(namespace, role_labels(job, role), {"kubernetes.io/metadata.name": namespace})


def everybody(w: JobBlueprint) -> dict[str, Pod]:
    """Everybody who could call: the job's pods, and others."""
    own = {role.value: pod(w.name, role) for role in (*w.roles, *batch_jobs())}
    return {**own, "agents": AGENTS, "operator": OPERATOR, "monitoring": PROMETHEUS, "stranger": STRANGER}


def in_table(table: list[NetworkCall], caller: str, callee: Role, port: int) -> bool:
    return any(call.caller == caller and call.callee is callee and call.port in (None, port) for call in table)


@pytest.mark.parametrize("mode", ["SharedVolume", "Group"])
def test_exactly_the_calls_of_the_table_pass(mode: str) -> None:
    values = quickstart()
    values["spec"]["weightSync"] = {"mode": mode}
    w = wanted(values, CPU_RUNTIME)
    table = [call for call in calls() if call.only in ({"", "group"} if mode == "Group" else {""})]
    any_port = {call.callee for call in table if call.port is None}
    made = policies(w)
    checked = 0
    for (caller, source), callee, port in itertools.product(everybody(w).items(), w.roles, PORTS_TRIED):
        if port == 53 and callee not in any_port:
            assert not passes(made, source, pod(w.name, callee), port)
            continue
        listed = in_table(table, caller, callee, port)
        assert passes(made, source, pod(w.name, callee), port) is listed, (caller, callee, port)
        checked += passes(made, source, pod(w.name, callee), port)
    assert checked == len(
        {
            (call.caller, call.callee, port)
            for call in table
            for port in PORTS_TRIED
            if call.callee in w.roles
            and call.port in (None, port)
            and (isinstance(call.caller, Outsider) or call.caller in w.roles)
        }
    )


def test_agents_of_a_job_reach_its_gateways_and_nothing_else() -> None:
    values = quickstart()
    values["spec"]["rollout"]["gateway"] = {"replicas": 2}
    w = wanted(values, CPU_RUNTIME)
    reached = {
        (role, port)
        for role, port in itertools.product(w.roles, PORTS_TRIED)
        if passes(policies(w), AGENTS, pod("digits", role), port)
    }
    assert reached == {(Role.GATEWAY, 8000)}
    assert not passes(policies(w), STRANGER, pod("digits", Role.GATEWAY), 8000)
    assert passes(policies(w), pod("digits", Role.WORKER), pod("digits", Role.GATEWAY), 9000)
    assert not passes(policies(w), pod("digits", Role.GATEWAY), pod("digits", Role.WORKER), 9000), "workers dial"


def test_every_policy_selects_the_pods_of_its_role_and_every_role_has_one() -> None:
    for w in (quickstart_wanted(), large_wanted()):
        for role in (*w.roles, *batch_jobs()):
            speaking = [one for one in policies(w) if selects(one, pod(w.name, role))]
            assert [one["metadata"]["name"] for one in speaking] == [f"{w.name}-{role.value}"]
            assert speaking[0]["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_the_pods_of_two_jobs_in_one_namespace_don_t_reach_each_other() -> None:
    other = {**quickstart(), "metadata": {"name": "neighbour"}}
    first, second = quickstart_wanted(), wanted(other, CPU_RUNTIME)
    made = policies(first, second)
    for caller, callee, port in itertools.product(first.roles, second.roles, PORTS_TRIED):
        assert not passes(made, pod("digits", caller), pod("neighbour", callee), port)


def test_a_job_of_the_same_name_in_another_namespace_is_a_stranger() -> None:
    w = quickstart_wanted()
    twin = pod("digits", Role.WORKER, namespace="team-b")
    assert not any(passes(policies(w), twin, pod("digits", role), port) for role in w.roles for port in PORTS_TRIED)


def test_a_pod_that_calls_itself_operator_elsewhere_is_a_stranger() -> None:
    impostor = Pod("team-a", OPERATOR_LABELS, {"kubernetes.io/metadata.name": "team-a"})
    w = quickstart_wanted()
    assert not any(passes(policies(w), impostor, pod("digits", role), port) for role in w.roles for port in PORTS_TRIED)


@pytest.mark.parametrize("role", [Role.REWARD, Role.REDIS])
def test_reward_and_redis_reach_nothing_not_even_dns(role: Role) -> None:
    values = quickstart()
    values["spec"]["reward"] = {"verifier": "math"}
    runtime = {**CPU_RUNTIME, "networkPolicy": {"egress": dict.fromkeys(("worker", "rewardCustom", "tools"), "Open")}}
    w = wanted(values, runtime)
    targets = [*everybody(w).values(), DNS, INTERNET]
    for target, port, protocol in itertools.product(targets, (*PORTS_TRIED, 443), ("TCP", "UDP")):
        assert not passes(policies(w), pod("digits", role), target, port, protocol)


def test_the_others_reach_dns_and_nothing_outside_of_the_job() -> None:
    w = quickstart_wanted()
    made = policies(w)
    for role in (Role.CONTROLLER, Role.WORKER, Role.GENERATION, Role.TRAINER, Role.REWARD_CUSTOM):
        assert passes(made, pod("digits", role), DNS, 53, "UDP")
        assert passes(made, pod("digits", role), DNS, 53)
        assert not passes(made, pod("digits", role), INTERNET, 443)
        assert not passes(made, pod("digits", role), STRANGER, 9000)


def test_tools_may_fetch_datasets_and_are_called_by_nobody() -> None:
    w = quickstart_wanted()
    assert passes(policies(w), pod("digits", Role.PREPARE), INTERNET, 443)
    for source, port in itertools.product(everybody(w).values(), PORTS_TRIED):
        assert not passes(policies(w), source, pod("digits", Role.PREPARE), port)


def test_the_runtime_opens_the_way_out_for_the_roles_it_names_only() -> None:
    runtime = {**CPU_RUNTIME, "networkPolicy": {"egress": {"worker": "Open", "tools": "Job"}}}
    made = policies(wanted(quickstart(), runtime))
    assert passes(made, pod("digits", Role.WORKER), INTERNET, 443)
    assert not passes(made, pod("digits", Role.TRAINER), INTERNET, 443)
    assert not passes(made, pod("digits", Role.PREPARE), INTERNET, 443)


def test_a_runtime_that_manages_policies_itself_gets_none() -> None:
    assert policies(wanted(quickstart(), {**CPU_RUNTIME, "networkPolicy": {"mode": "Unmanaged"}})) == []


def test_an_external_redis_is_reached_by_its_three_clients_only() -> None:
    runtime = copy.deepcopy(GPU_RUNTIME)
    runtime["networkPolicy"] = {}
    w = wanted(large(), runtime, recipe=None)
    reaching = {role.value for role in w.roles if passes(policies(w), pod(w.name, role), INTERNET, 6379)}
    assert reaching == {"controller", "trainer", "worker"}
    assert not any(passes(policies(w), pod(w.name, role), INTERNET, 443) for role in w.roles)


def test_nobody_scrapes_unless_the_operator_was_told_who() -> None:
    target = pod("digits", Role.CONTROLLER)
    assert not passes(policies(quickstart_wanted(metrics_from=None)), PROMETHEUS, target, 9100)
    assert passes(policies(quickstart_wanted(metrics_from={})), STRANGER, target, 9100)
    assert not passes(policies(quickstart_wanted()), STRANGER, target, 9100)


def test_an_operator_outside_of_the_cluster_comes_from_anywhere_to_its_own_ports_only() -> None:
    made = policies(quickstart_wanted(operator_namespace=""))
    target = pod("digits", Role.TRAINER)
    assert passes(made, STRANGER, target, 9001)
    assert not passes(made, STRANGER, target, 29500)
    assert not passes(made, STRANGER, pod("digits", Role.REDIS), 6379)


def test_every_call_of_the_table_goes_to_a_port_on_which_the_callee_listens() -> None:
    for call in calls():
        if call.port is not None and call.port != 9001:
            assert call.port in spec_of(call.callee).pod_ports.values(), call


def test_every_service_port_is_dialled_by_somebody() -> None:
    w = quickstart_wanted()
    for service in (one for one in workloads(w) if one["kind"] == "Service"):
        role = Role(service["metadata"]["labels"]["areal.dev/role"])
        if role is Role.WORKER:
            continue  # a StatefulSet must name one; nobody dials workers
        for port in service["spec"]["ports"]:
            assert any(call.callee is role and call.port in (None, port["port"]) for call in calls()), (role, port)


def test_the_table_in_the_documentation_is_the_code_s() -> None:
    assert as_markdown() in (ROOT / "docs" / "security.md").read_text()


@pytest.mark.parametrize(
    ("endpoint", "open_port"),
    [
        ("http://collector.monitoring:4318", 4318),
        ("http://collector.monitoring.svc.cluster.local:4318", 4318),
        ("https://collector.monitoring", 443),
        ("https://otlp.example.com:4318", None),
        ("http://10.0.0.7:4318", None),
    ],
)
def test_the_way_to_a_trace_collector_is_open_only_where_it_is_a_service(endpoint: str, open_port: int | None) -> None:
    job = quickstart()
    job["spec"]["observability"] = {"traces": {"endpoint": endpoint}}
    made = policies(wanted(job, CPU_RUNTIME))
    worker = pod(job["metadata"]["name"], Role.WORKER)
    for port in (443, 4318):
        assert passes(made, worker, PROMETHEUS, port) is (port == open_port)
        assert not passes(made, worker, INTERNET, port)
        assert not passes(made, pod(job["metadata"]["name"], Role.REWARD_CUSTOM), PROMETHEUS, port)


@pytest.mark.parametrize(
    ("endpoint", "opened"), [("http://teacher.models:30000", True), ("http://teacher.example.com:30000", False)]
)
def test_the_way_to_a_served_teacher_is_the_trainers_alone(endpoint: str, opened: bool) -> None:
    job = quickstart()
    job["spec"]["algorithm"]["teacher"] = {"path": "pvc://models/large", "endpoint": endpoint}
    made, name = policies(wanted(job, CPU_RUNTIME)), job["metadata"]["name"]
    teacher = Pod("models", {"app": "teacher"}, {"kubernetes.io/metadata.name": "models"})
    assert passes(made, pod(name, Role.TRAINER), teacher, 30000) is opened
    assert not passes(made, pod(name, Role.TRAINER), teacher, 443)
    assert not passes(made, pod(name, Role.WORKER), teacher, 30000)
