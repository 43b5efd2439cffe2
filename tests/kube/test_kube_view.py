"""The login of the page against a real API server: real tokens of service accounts, real rights."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from areal_view.pages.reviews import ApiServer, OwnReview, Review
from kube.harness.client import Client
from kube.harness.control_plane import Cluster

pytestmark = pytest.mark.kube_api

RBAC = "rbac.authorization.k8s.io"


def server_of(cluster: Cluster) -> ApiServer:
    told = yaml.safe_load(Path(cluster.kubeconfig).read_text())["clusters"][0]["cluster"]
    authority = (
        base64.b64decode(told["certificate-authority-data"]).decode()
        if "certificate-authority-data" in told
        else Path(told["certificate-authority"]).read_text()
    )
    url = urlsplit(told["server"])
    return ApiServer(url.hostname or "", url.port or 443, ssl.create_default_context(cadata=authority))


def token_of(admin: Client, namespace: str, account: str) -> str:
    """As `kubectl create token` asks for one."""
    admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": account}})
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(admin.raw("POST", path, json=body)["status"]["token"])


def allow(admin: Client, namespace: str, account: str, job: str) -> None:
    """`get` of one job."""
    rules = [{"apiGroups": ["areal.dev"], "resources": ["rljobs"], "resourceNames": [job], "verbs": ["get"]}]
    metadata = {"namespace": namespace, "name": "reader"}
    admin.create({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
    admin.create({
        "apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
    })  # fmt: skip


def test_a_token_opens_the_job_that_its_holder_may_get_and_no_other(
    cluster: Cluster, admin: Client, namespace: str
) -> None:
    server = server_of(cluster)
    reader, stranger = (token_of(admin, namespace, name) for name in ("reader", "stranger"))
    allow(admin, namespace, "reader", "digits")
    digits = OwnReview(server, namespace, "digits")
    assert digits(reader) is Review.ALLOWED
    assert digits(stranger) is Review.FORBIDDEN
    assert digits(reader[:-8] + "AAAAAAAA") is Review.UNKNOWN
    assert digits("nonsense") is Review.UNKNOWN
    assert OwnReview(server, namespace, "other")(reader) is Review.FORBIDDEN
    assert OwnReview(server, "default", "digits")(reader) is Review.FORBIDDEN
    assert OwnReview(ApiServer(server.host, 1, server.trust), namespace, "digits")(reader) is Review.SILENT
