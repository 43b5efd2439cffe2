"""The table of roles: every list of roles elsewhere names these, and a new row reaches everything made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

import pytest
import yaml
from areal.admit.cluster import resolve_for_pods, roles_of
from areal.plan import RoleHost, RoleRow, role_table
from areal.plan.cluster_names import LAUNCHER_PORT, Role
from areal.plan.redis_conf import User
from areal.plan.role_specs import (
    ROLE_SPECS,
    Caller,
    PodNeeds,
    RoleProgram,
    RoleSpec,
    RunPart,
    long_running,
    redis_logins,
    spec_of,
)
from areal.plan.roles import assign_ports, role_instances
from areal.plan.table import role_row
from areal.spec.block import fields_of
from areal.spec.cluster import JobRole, PodTemplate
from areal.spec.runtime import Egress, RuntimeRoles
from areal_operator.operator.children import foundation, workloads
from support.cluster_jobs import NAMESPACE, UID, quickstart_wanted

from deploy.chart.shapes import SHAPES

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
PLACE = RoleHost("python", ("areal-role",), "redis-server", job_file=Path("/j.json"))
ROUTER = cast("Role", "router")  # no member of the enumeration: nothing may depend on that
ROUTER_ROW = RoleSpec(
    role=ROUTER,
    what="spreads requests over servers",
    program=RoleProgram.AREAL_ROLE,
    entry="areal.router.main:run",
    workload="StatefulSet",
    template_key="controller",
    count=lambda spec, verifier: 2,
    indexed=True,
    depends_on=(Role.CONTROLLER,),
    called_by=(Caller(Role.WORKER, "grpc", "makes tokens"),),
    run_parts=(RunPart(Path("/areal/run/router"), writable=True),),
    needs=PodNeeds(requests={"cpu": "1"}, limits={"memory": "3Gi"}, grace_s=77),
    headless=True,
    max_unavailable=1,
)


def aliases(block: type[PodTemplate | RuntimeRoles | Egress]) -> set[str]:
    return {field.alias or name for name, field in block.model_fields.items()}


def test_each_role_has_one_row() -> None:
    assert set(ROLE_SPECS) == set(Role)
    assert all(row.role is role for role, row in ROLE_SPECS.items())


def test_what_users_and_platforms_may_name_are_exactly_these_roles() -> None:
    keys = {row.template_key for row in ROLE_SPECS.values()}
    assert aliases(RuntimeRoles) == keys
    assert aliases(PodTemplate) == {"surge"} | {row.patch_key or row.template_key for row in ROLE_SPECS.values()}
    assert set(SHAPES["roles"]["properties"]) == keys, "the chart's values"
    assert set(SHAPES["egress"]["properties"]) == aliases(Egress) <= keys
    sealed = {row.template_key for row in ROLE_SPECS.values() if row.sealed}
    assert not aliases(Egress) & sealed, "what opens no connection can't be let out"
    assert set(get_args(JobRole)) == set(long_running())
    assert set(redis_logins().values()) == set(get_args(User))


def test_the_api_server_knows_exactly_these_roles() -> None:
    definition = yaml.safe_load((ROOT / "charts/areal/files/crds/rljobs.areal.dev.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    rules = schema["failurePolicy"]["properties"]["rules"]["items"]["properties"]["roles"]
    assert set(rules["items"]["enum"]) == set(long_running())
    assert rules["maxItems"] == len(long_running())
    patched = {row.patch_key or row.template_key for row in ROLE_SPECS.values()}
    assert set(fields_of(PodTemplate)) == patched | {"surge"}, "and a pool that some servers have of their own"
    (known,) = schema["podTemplate"]["x-kubernetes-validations"]
    assert all(f"'{role}'" in known["rule"] for role in patched)


def test_scratch_is_bounded_but_for_roles_that_hold_models_or_datasets() -> None:
    unbounded = {role for role, row in ROLE_SPECS.items() if row.needs is not None and not row.needs.scratch}
    assert unbounded == {Role.GENERATION, Role.REWARD_MODEL, Role.TRAINER, Role.PREPARE, Role.FINISH}


def test_every_caller_is_a_role_and_calls_a_port_that_the_callee_has() -> None:
    for row in ROLE_SPECS.values():
        for caller in row.called_by:
            assert caller.port is None or caller.port in row.ports, (row.role, caller)
            assert not (isinstance(caller.who, Role) and spec_of(caller.who).sealed), "it opens no connection"


def rows_here() -> dict[str, RoleRow]:
    """The rows of a job on one machine, by name."""
    resolved = quickstart_wanted().resolved
    ports = assign_ports(role_instances(resolved.job, resolved.verifier), lambda count: [1] * count)
    return {row.name: row for row in role_table(resolved.model_copy(update={"ports": ports}), PLACE)}


def test_rows_here_and_in_pods_agree_on_index_and_ports() -> None:
    resolved = quickstart_wanted().resolved
    here = rows_here()
    for role in roles_of(resolved):
        inside = role_row(resolved, role, 0, PLACE)
        if spec_of(role).gang:
            assert (spec_of(role).row(0), inside.name) == (role, f"{role}-0"), "one row here, one a member in pods"
        else:
            assert here[inside.name].index == inside.index == 0
        assert set(here[spec_of(role).row(0)].ports) == set(inside.ports)


@pytest.fixture
def with_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROLE_SPECS, ROUTER, ROUTER_ROW)


def of_router(objects: list[Json], kind: str) -> Json:
    (found,) = (one for one in objects if one["kind"] == kind and one["metadata"]["name"] == "digits-router")
    return found


@pytest.mark.usefixtures("with_router")
def test_a_new_row_is_a_process_on_one_machine_and_a_row_in_a_pod() -> None:
    row = rows_here()["router-0"]
    assert row.command == [
        "areal-role", "router", "--job", "/j.json", "--index", "0", "--port", "1", "--metrics-port", "1",
    ]  # fmt: skip
    assert row.depends_on == ["controller"]
    assert rows_here()["router-1"].env["AREAL_INDEX"] == "1"
    resolved = resolve_for_pods(quickstart_wanted().job, namespace=NAMESPACE, uid=UID, recipe_source="reward = 1")
    inside = role_row(resolved, "router", 1, PLACE)
    assert (inside.name, inside.ports) == ("router-1", {"grpc": 9000, "metrics": 9100})


@pytest.mark.usefixtures("with_router")
def test_a_new_row_is_a_workload_with_its_pods_service_and_budget() -> None:
    made = workloads(quickstart_wanted())
    workload = of_router(made, "StatefulSet")["spec"]
    assert (workload["replicas"], workload["serviceName"]) == (2, "digits-router")
    pod = workload["template"]["spec"]
    main = pod["containers"][0]
    assert main["command"][-4:] == ["--role", "router", "--port", str(LAUNCHER_PORT)]
    assert main["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "3Gi"}}
    assert {"run", "access", "job"} <= {mount["name"] for mount in main["volumeMounts"]}
    assert (pod["terminationGracePeriodSeconds"], pod["restartPolicy"]) == (77, "Always")
    service = of_router(made, "Service")["spec"]
    assert (service["clusterIP"], [port["port"] for port in service["ports"]]) == ("None", [9000])
    assert of_router(made, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.usefixtures("with_router")
def test_a_new_row_may_be_called_by_whom_it_names_and_by_nobody_else() -> None:
    made = foundation(quickstart_wanted(metrics_from={}))
    policy = of_router(made, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == {"areal.dev/rljob": "digits", "areal.dev/role": "router"}
    callers = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    worker = {"podSelector": {"matchLabels": {"areal.dev/rljob": "digits", "areal.dev/role": "worker"}}}
    assert callers.pop(9000) == [worker]
    assert set(callers) == {LAUNCHER_PORT, 9100}, "the operator's and monitoring's"
    (outwards,) = (one for one in made if one["metadata"]["name"] == "digits-worker" and one["kind"] == "NetworkPolicy")
    dialled = [peer for rule in outwards["spec"]["egress"] for peer in rule.get("to", ())]
    assert {"podSelector": policy["podSelector"]} in dialled
