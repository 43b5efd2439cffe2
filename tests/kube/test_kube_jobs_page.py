"""The page of a cluster's jobs against a real API server: each visitor sees what their own token may list."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from areal_view.pages.job_list import job_list
from areal_view.pages.reviews import ApiServer
from chart.chart_release import job
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.processes import eventually
from kube.test_kube_view import RBAC, server_of, token_of
from starlette.testclient import TestClient

pytestmark = [pytest.mark.kube_api, pytest.mark.usefixtures("crds")]

HTML = {"accept": "text/html"}


def page_of(server: ApiServer, *namespaces: str) -> TestClient:
    return TestClient(job_list(server, namespaces, ""), base_url="http://127.0.0.1:8000", follow_redirects=False)


@pytest.fixture
def page(cluster: Cluster) -> Iterator[TestClient]:
    with page_of(server_of(cluster)) as client:
        yield client


def job_in(admin: Client, namespace: str, name: str) -> None:
    told = job(name)
    told["metadata"]["namespace"] = namespace
    admin.create(told)


def may_list(admin: Client, namespace: str, account: str) -> None:
    rules = [{"apiGroups": ["areal.dev"], "resources": ["rljobs"], "verbs": ["get", "list"]}]
    metadata = {"namespace": namespace, "name": account}
    admin.create({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
    admin.create({
        "apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
    })  # fmt: skip


def log_in(page: TestClient, token: str) -> int:
    return page.post("/login", data={"token": token}).status_code


def test_a_service_account_sees_the_jobs_of_its_namespace_and_no_others(
    page: TestClient, admin: Client, namespace: str
) -> None:
    job_in(admin, namespace, "digits")
    token = token_of(admin, namespace, "reader")
    may_list(admin, namespace, "reader")
    assert page.get("/", headers=HTML).headers["location"] == "/login"
    assert [log_in(page, wrong) for wrong in ("nonsense", token[:-8] + "AAAAAAAA")] == [401, 401]
    assert log_in(page, token) == 303
    home = page.get("/", headers=HTML).headers["location"]
    assert home == f"/?namespace={namespace}"
    assert f'href="/jobs/{namespace}/digits"' in page.get(home).text
    assert f"areal view rljob/digits -n {namespace}" in page.get(f"/jobs/{namespace}/digits").text
    others = page.get("/?namespace=default")
    assert (others.status_code, "does not let you list" in others.text) == (200, True)
    assert page.get("/jobs/default/digits").status_code == 403
    assert page.get(f"/jobs/{namespace}/missing").status_code == 404
    assert page.get("/?namespace=..%2F..%2Fsecrets").status_code in (200, 404)


def test_who_may_list_the_whole_cluster_sees_it_at_once(cluster: Cluster, admin: Client, namespace: str) -> None:
    job_in(admin, namespace, "digits")
    account, token = f"all-{namespace}", token_of(admin, namespace, "everything")
    admin.create({
        "apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": account},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "everything"}],
    })  # fmt: skip
    with page_of(server_of(cluster)) as page:
        assert log_in(page, token) == 303
        listed = page.get("/?format=json").json()
    assert (namespace, "digits") in {(one["namespace"], one["name"]) for one in listed["jobs"]}
    assert (listed["refused"], listed["cut"]) == ([], False)


def test_an_api_server_that_is_silent_is_named(cluster: Cluster, admin: Client, namespace: str) -> None:
    server = server_of(cluster)
    with page_of(ApiServer(server.host, 1, server.trust), namespace) as page:
        assert log_in(page, token_of(admin, namespace, "reader")) == 502


def test_a_token_that_is_withdrawn_ends_its_session(page: TestClient, admin: Client, namespace: str) -> None:
    token = token_of(admin, namespace, "reader")
    may_list(admin, namespace, "reader")
    assert log_in(page, token) == 303
    assert page.get(f"/?namespace={namespace}").status_code == 200
    admin.raw("DELETE", f"/api/v1/namespaces/{namespace}/serviceaccounts/reader")

    def asked_again() -> bool:  # within the ten seconds for which the API server remembers a token
        return page.get(f"/?namespace={namespace}").headers.get("location") == "/login"

    eventually(asked_again, "the token is refused", timeout_s=60)
    assert page.get("/").status_code == 401, "it is forgotten"
