"""Rights: the operator has those its code uses and no other; people have roles that fit what they may do."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from areal_operator.kube import resources
from areal_operator.kube.resources import CERTIFICATES, WORKLOADS, Resource, resource_of
from areal_operator.operator.children import finish_job, foundation, prepare_job, workloads
from areal_operator.operator.watched import watched
from chart.chart_rendering import EVERYTHING, MATRIX, ROOT, Object, deployment_of, named, of_kind, render, runtimes_of
from kube.harness import tools
from support.cluster_jobs import claiming_wanted, grouped_wanted, large_wanted, quickstart_wanted
from support.policies import Pod, passes

pytestmark = pytest.mark.kube_api

KUEUE: Object = {"operator": {"kueue": True}}
QUEUES = ("resourceflavors", "workloadpriorityclasses", "workloads", "workloads/status")

Right = tuple[str, str, str]  # group, resource (with its subresource), verb

_VERBS = {"get": ("get",), "list": ("list",), "create": ("create",), "delete": ("delete",), "merge": ("patch",)}
"""Methods of the operator's client, and the rights each needs. `apply` is asked for by kind: see `applied`."""


def rights(rules: Iterable[Object]) -> set[Right]:
    """What rules allow, one by one."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def granted(objects: list[Object], account: str, namespace: str) -> set[Right]:
    """What the roles bound to a service account allow it, anywhere."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    found: set[Right] = set()
    for binding in [*of_kind(objects, "ClusterRoleBinding"), *of_kind(objects, "RoleBinding")]:
        if subject in binding["subjects"]:
            kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
            roles = [role for role in of_kind(objects, kind) if role["metadata"]["name"] == name]
            where = binding["metadata"].get("namespace")
            found |= rights(
                rule for role in roles if role["metadata"].get("namespace") == where for rule in role["rules"]
            )
    return found


@cache
def calls() -> tuple[tuple[str, Resource], ...]:
    """Every method of the client that the operator's code calls with a resource by name."""
    return tuple(
        found
        for path in sorted((ROOT / "services" / "areal_operator").rglob("*.py"))
        if path.name != "api.py"
        for function in _functions(ast.parse(path.read_text(encoding="utf-8")))
        for found in _calls(function)
    )


def _functions(tree: ast.Module) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _calls(function: ast.AST) -> Iterator[tuple[str, Resource]]:
    """A variable that a function made out of constants stands for all of them."""
    variables = {
        target.id: list(_constants(node.value))
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VERBS):
            continue
        if ast.unparse(node.func.value).rpartition(".")[2] not in ("api", "_api"):
            continue
        about = node.args[0]
        found = list(_constants(about)) or (variables.get(about.id, []) if isinstance(about, ast.Name) else [])
        if not found and ast.unparse(about) in ("one.resource", "resource"):
            continue  # what is watched, listed once more; what is applied, created on trial before
        assert found, f"which resource is {ast.unparse(node)} about?"
        yield from ((node.func.attr, resource) for resource in found)


def _constants(node: ast.AST) -> Iterator[Resource]:
    for part in ast.walk(node):
        name = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
        if isinstance(getattr(resources, name, None), Resource):
            yield getattr(resources, name)


def applied() -> set[Resource]:
    """The resources of every object that the operator makes of a job."""
    made = [
        obj
        for wanted in (quickstart_wanted(), large_wanted(), claiming_wanted())
        for obj in [*foundation(wanted), prepare_job(wanted), *workloads(wanted), finish_job(wanted)]
    ]
    return {resource_of(obj) for obj in made}


def needed() -> set[Right]:
    """What the operator's code asks of the API server, beside what is granted for certificates."""
    asked: set[Right] = set()
    for one in watched(dict):
        asked |= {(one.resource.group, one.resource.plural, verb) for verb in ("list", "watch")}
    for resource in applied():
        asked |= {(resource.group, resource.plural, verb) for verb in ("create", "patch")}
    for method, resource in calls():
        if resource.group != CERTIFICATES.group:
            asked |= {(resource.group, resource.plural, verb) for verb in _VERBS[method]}
    asked.add(("areal.dev", "rljobs/status", "patch"))
    asked |= {(WORKLOADS.group, "workloads", verb) for verb in ("create", "patch")}  # made of jobs that name a queue
    asked.add((WORKLOADS.group, "workloads/status", "patch"))
    asked.add(("", "persistentvolumeclaims", "delete"))  # to adopt what `areal submit` made: some servers ask for it
    asked |= {("areal.dev", "clusterrlruntimes", verb) for verb in ("create", "patch")}  # the release's own
    asked.add(("", "pods", "create"))  # dry runs only: a role's pod is tried before its workload is made
    asked.add(("areal.dev", "rljobs/finalizers", "update"))  # to own what blocks the job's deletion
    asked |= {("coordination.k8s.io", "leases", verb) for verb in ("create", "get", "update")}
    return asked


def needed_for_kueue() -> set[Right]:
    """What of it is granted with `operator.kueue` only."""
    return {right for right in needed() if right[0] == WORKLOADS.group or right[1] == "priorityclasses"}


def test_the_operator_may_do_what_its_code_does_and_nothing_else() -> None:
    found = granted(render(values=KUEUE), "areal-operator", "system")
    assert sorted(found - needed()) == [], "granted, but not used"
    assert sorted(needed() - found) == [], "used, but not granted"


def test_without_kueue_the_operator_may_not_touch_it() -> None:
    of_kueue = granted(render(values=KUEUE), "areal-operator", "system") - granted(render(), "areal-operator", "system")
    assert {(group, resource) for group, resource, _ in of_kueue} == {
        *(("kueue.x-k8s.io", name) for name in QUEUES),
        ("scheduling.k8s.io", "priorityclasses"),
    }
    assert not any(group == "kueue.x-k8s.io" for group, _, _ in granted(render(), "areal-operator", "system"))


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("SelfSigned", {("", "secrets", "patch")}),
        (
            "CertManager",
            {("cert-manager.io", "certificates", verb) for verb in ("create", "list", "patch")}
            | {("cert-manager.io", "certificaterequests", "list")},
        ),
    ],
)
def test_with_tls_the_operator_may_do_what_certificates_need_and_its_runtimes_ask_for_it(
    mode: str, more: set[Right]
) -> None:
    objects, before = render(values={"tls": {"mode": mode}}), render()
    assert granted(objects, "areal-operator", "system") - granted(before, "areal-operator", "system") == more
    asked = [runtime["spec"].get("tls") for runtime in runtimes_of(objects)]
    assert asked
    assert asked == [{"mode": mode}] * len(asked)
    assert not any("tls" in runtime["spec"] for runtime in runtimes_of(before))


def test_where_the_cluster_has_pod_groups_the_operator_may_make_them_and_its_runtimes_ask_for_it() -> None:
    has, before = ("scheduling.k8s.io/v1alpha2/PodGroup",), render()
    objects = render(has=has)
    (group,) = {resource_of(obj) for obj in workloads(grouped_wanted())} - applied()
    (version,) = {runtime["spec"]["podGroups"] for runtime in runtimes_of(objects)}
    assert (group.kind, group.version) == ("PodGroup", version)
    more = {(group.group, group.plural, verb) for verb in ("create", "patch")}
    assert granted(objects, "areal-operator", "system") - granted(before, "areal-operator", "system") == more
    off = render(values={"operator": {"gang": False}}, has=has)
    for without in (before, off):
        assert granted(without, "areal-operator", "system") == granted(before, "areal-operator", "system")
        assert not any("podGroups" in runtime["spec"] for runtime in runtimes_of(without))


def test_the_code_is_read_right() -> None:
    assert ("delete", resources.PODS) in calls()
    assert ("get", resources.SECRETS) in calls()
    assert {("delete", resources.STATEFULSETS), ("delete", resources.DEPLOYMENTS)} <= set(calls())
    assert resources.NETWORK_POLICIES in applied()


def test_an_operator_of_some_namespaces_has_its_rights_there_only() -> None:
    objects = render("namespaced-values.yaml")
    [role] = [each for each in of_kind(objects, "ClusterRole") if each["metadata"]["name"].endswith("-operator")]
    assert rights(role["rules"]) == {
        (group, resource, verb)
        for group, resource in (("", "nodes"), ("areal.dev", "clusterrlruntimes"))
        for verb in ("list", "watch")
    }
    roles = [each for each in of_kind(objects, "Role") if each["metadata"]["name"].endswith("-operator")]
    assert {each["metadata"]["namespace"] for each in roles} == {"research-a", "research-b"}
    install_none = {("areal.dev", "clusterrlruntimes", verb) for verb in ("create", "patch")}
    assert granted(objects, "areal-research", "system") == needed() - install_none - needed_for_kueue()


@pytest.mark.parametrize("values", [*MATRIX, None])
def test_no_role_has_a_wildcard_and_none_lists_secrets(values: str | None) -> None:
    objects = render(values) if values else render(values=EVERYTHING)
    for role in [*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role")]:
        assert "nonResourceURLs" not in str(role)
        for group, resource, verb in rights(role["rules"]):
            assert "*" not in (group, resource, verb), role["metadata"]["name"]
            assert verb not in ("escalate", "bind", "impersonate")
            if resource == "secrets":
                assert verb in ("create", "get")


def test_every_verb_list_is_in_order() -> None:
    for role in [*of_kind(render(), "ClusterRole"), *of_kind(render(), "Role")]:
        for rule in role["rules"]:
            assert rule["verbs"] == sorted(rule["verbs"])
            assert rule["resources"] == sorted(rule["resources"])


def test_the_operator_may_touch_its_own_lease_only() -> None:
    role = named(render(), "Role", "areal-operator-lease")
    by_name = [rule for rule in role["rules"] if "resourceNames" in rule]
    assert [rule["resourceNames"] for rule in by_name] == [["areal-operator"]]
    assert rights(rule for rule in role["rules"] if "resourceNames" not in rule) == {
        ("coordination.k8s.io", "leases", "create")
    }


def test_viewers_read_editors_run_jobs_and_only_administrators_write_pod_templates() -> None:
    objects = render()
    roles = {
        each["metadata"]["name"].removeprefix("system-areal-"): each
        for each in of_kind(objects, "ClusterRole")
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "users"
    }
    assert roles.keys() == {"rljob-viewer", "rljob-editor", "rlruntime-editor", "runtime-reader"}
    assert {verb for _, _, verb in rights(roles["rljob-viewer"]["rules"])} == {"get", "list", "watch"}
    editor = rights(roles["rljob-editor"]["rules"])
    assert ("areal.dev", "rljobs", "create") in editor
    assert ("areal.dev", "rljobs/scale", "patch") in editor
    assert {verb for _, resource, verb in editor if resource in ("rlruntimes", "rljobs/status")} == {
        "get",
        "list",
        "watch",
    }
    aggregated = {
        name: sorted(key.rpartition("-")[2] for key in role["metadata"]["labels"] if "/aggregate-to-" in key)
        for name, role in roles.items()
    }
    assert aggregated == {
        "rljob-viewer": ["admin", "edit", "view"],
        "rljob-editor": ["admin", "edit"],
        "rlruntime-editor": ["admin"],
        "runtime-reader": [],
    }


def test_people_get_nothing_that_was_not_asked_for() -> None:
    objects = render(values={"rbac": {"userRoles": False, "runtimeReaders": []}})
    assert "aggregate-to" not in str(objects)
    assert [each["metadata"]["name"] for each in of_kind(objects, "ClusterRoleBinding")] == ["system-areal-operator"]
    readers = [each for each in of_kind(render(), "ClusterRoleBinding") if "reader" in str(each)]
    assert [each["subjects"] for each in readers] == [
        [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]
    ]


def test_roles_can_be_left_to_somebody_else() -> None:
    objects = render(values={"rbac": {"create": False}})
    bindings = [*of_kind(objects, "RoleBinding"), *of_kind(objects, "ClusterRoleBinding")]
    assert "areal-operator" not in str([binding["subjects"] for binding in bindings])


def test_the_lease_that_the_operator_may_touch_is_the_one_it_is_told() -> None:
    for release in ("areal", "other"):
        objects = render(release=release)
        deployment = deployment_of(objects, "operator")
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        [lease] = [each.partition("=")[2] for each in arguments if each.startswith("--lease-name=")]
        assert [lease] == [
            name
            for role in of_kind(objects, "Role")
            if role["metadata"]["name"].endswith("-lease")
            for rule in role["rules"]
            for name in rule.get("resourceNames", [])
        ]


@pytest.mark.parametrize(("component", "command"), [("operator", "operator"), ("jobs", "jobs-page")])
def test_every_argument_is_an_option_that_the_command_has(component: str, command: str) -> None:
    shown = tools.run([str(ROOT / ".venv" / "bin" / "areal"), command, "--help"], env={"COLUMNS": "200"}).stdout
    for values in ("default-values.yaml", "namespaced-values.yaml"):
        main = deployment_of(render(values), component)["spec"]["template"]["spec"]["containers"][0]
        assert [*main["command"], main["args"][0]] == ["areal", command]
        for argument in main["args"][1:]:
            assert f"{argument.partition('=')[0]} " in shown, argument


@pytest.mark.parametrize("values", ["default-values.yaml", "namespaced-values.yaml"])
def test_the_page_of_jobs_has_no_right_no_secret_and_no_run(values: str) -> None:
    objects = render(values)
    page = deployment_of(objects, "jobs")
    name, spec = page["metadata"]["name"], page["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (name, False)
    assert granted(objects, name, "system") == set()
    volumes = {volume["name"]: next(kind for kind in volume if kind != "name") for volume in spec["volumes"]}
    assert volumes == {"tmp": "emptyDir", "cluster": "configMap"}


def test_browsers_reach_the_page_of_jobs_from_where_values_say_and_it_reaches_the_api_server_only() -> None:
    policies = {name: named(render(name), "NetworkPolicy", release) for name, release in (
        ("default-values.yaml", "areal-jobs"), ("namespaced-values.yaml", "areal-research-jobs"),
    )}  # fmt: skip
    ingress = Pod("ingress", {}, {"kubernetes.io/metadata.name": "ingress"})
    labelled = Pod("edge", {}, {"areal.dev/viewers": "allowed"})
    for values, caller in (("default-values.yaml", labelled), ("namespaced-values.yaml", ingress)):
        policy = policies[values]
        page = Pod("system", policy["spec"]["podSelector"]["matchLabels"], {})
        callers = (labelled, ingress, Pod("team-a", {}, {}))
        assert [one for one in callers if passes([policy], one, page, 8000)] == [caller]
        assert not passes([policy], caller, page, 9000)
    policy = policies["default-values.yaml"]
    page = Pod("system", policy["spec"]["podSelector"]["matchLabels"], {})
    assert [p for p in (53, 80, 443, 6443, 8000, 9000) if passes([policy], page, labelled, p)] == [443, 6443]


def test_pods_of_hooks_reach_what_they_check_and_nobody_else_reaches_them() -> None:
    policies = {each["metadata"]["name"]: each for each in of_kind(render(values=EVERYTHING), "NetworkPolicy")}
    check, guard, operator = (
        Pod("system", policies[f"areal-{name}"]["spec"]["podSelector"]["matchLabels"], {})
        for name in ("test", "uninstall-guard", "operator")
    )
    anybody, listed = Pod("system", {}, {}), list(policies.values())
    ports = (53, 80, 443, 5353, 6443, 8080, 8081, 9000)
    assert [port for port in ports if passes(listed, check, operator, port)] == [8081]
    assert [port for port in ports if passes(listed, check, check, port)] == [8080]
    assert [port for port in ports if passes(listed, check, anybody, port)] == [53, 443, 5353, 6443]
    assert [port for port in ports if passes(listed, guard, anybody, port)] == [443, 6443]
    assert not any(passes(listed, anybody, each, port) for each in (check, guard) for port in ports)
