"""A small synchronous client of the Kubernetes API for tests: plain dicts over HTTP.

Owned by the tests and unlike the operator's own client on purpose: what the operator writes is read back by other code.
Asks the server's discovery where a kind lives, so it knows custom resources too. An answer of 400 or more is `Refused`.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

Object = dict[str, Any]
_PATIENCE_S = 20.0  # the storage of a custom resource that has just been changed takes a second to come back


class Refused(AssertionError):
    """The API server said no."""

    def __init__(self, code: int, body: Object) -> None:
        super().__init__(f"{code} {body.get('reason', '')}: {body.get('message', body)}")
        self.code = code
        self.reason: str = body.get("reason", "")
        self.message: str = body.get("message", "")
        self.body = body


class Client:
    """One user of one cluster, as its kubeconfig says (certificate or token)."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        url, tls, headers = connection(kubeconfig)
        self._http = httpx.Client(base_url=url, verify=tls, headers=headers, timeout=30.0, trust_env=False)
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    @property
    def base_url(self) -> str:
        """Where the server is."""
        return str(self._http.base_url)

    def close(self) -> None:
        """Hangs up."""
        self._http.close()

    def with_token(self, token: str, path: Path) -> Path:
        """Writes a kubeconfig for the same cluster and the holder of `token`."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        context = next(item for item in config["contexts"] if item["name"] == config["current-context"])
        config["users"] = [{"name": "token", "user": {"token": token}}]
        context["context"]["user"] = "token"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def raw(self, method: str, path: str, **options: Any) -> Any:
        """One request; the decoded answer (text when it is not JSON)."""
        answer = self.send(method, path, **options)
        return answer.json() if _is_json(answer) else answer.text

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request; the answer with its headers. A busy server is asked again, as it wishes."""
        deadline = time.monotonic() + _PATIENCE_S
        while (answer := self._http.request(method, path, **options)).status_code == 429:
            if time.monotonic() > deadline:
                break
            time.sleep(min(1.0, float(answer.headers.get("retry-after", 1))))
        if answer.status_code >= 400:
            raise Refused(answer.status_code, answer.json() if _is_json(answer) else {"message": answer.text})
        return answer

    def ready(self) -> bool:
        """Whether the server answers and says it is ready."""
        try:
            return bool(self._http.get("/readyz", timeout=2.0).status_code == 200)
        except httpx.HTTPError:
            return False

    def path(self, api_version: str, kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of a kind, an object or its subresource; `namespace` is ignored for what has none."""
        plural, namespaced = self._where(api_version, kind)
        parts = ["/apis" if "/" in api_version else "/api", api_version]
        parts += ["namespaces", namespace] if namespaced and namespace else []
        return "/".join([*parts, plural, *([name] if name else []), *([subresource] if subresource else [])])

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None when there is none."""
        try:
            return dict(self.raw("GET", self.path(api_version, kind, namespace, name)))
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All objects of a kind."""
        body = self.raw(
            "GET", self.path(api_version, kind, namespace), params={"labelSelector": labels} if labels else {}
        )
        return [{"apiVersion": api_version, "kind": kind, **item} for item in body["items"]]

    def create(self, obj: Object, *, dry_run: bool = False) -> Object:
        """POSTs it."""
        metadata = obj["metadata"]
        path = self.path(obj["apiVersion"], obj["kind"], metadata.get("namespace", "default"))
        return dict(self.raw("POST", path, json=obj, params={"dryRun": "All"} if dry_run else {}))

    def apply(self, obj: Object, *, manager: str = "tests", force: bool = True, subresource: str = "") -> Object:
        """Server-side apply."""
        metadata = obj["metadata"]
        path = self.path(
            obj["apiVersion"], obj["kind"], metadata.get("namespace", "default"), metadata["name"], subresource
        )
        params = {"fieldManager": manager, "force": str(force).lower()}
        headers = {"content-type": "application/apply-patch+yaml"}
        return dict(self.raw("PATCH", path, content=json.dumps(obj), params=params, headers=headers))

    def patch(self, obj: Object, change: Object, *, subresource: str = "", strategic: bool = False) -> Object:
        """A merge patch of the object that `obj` names."""
        metadata = obj["metadata"]
        path = self.path(
            obj["apiVersion"], obj["kind"], metadata.get("namespace", "default"), metadata["name"], subresource
        )
        kind = "strategic-merge-patch" if strategic else "merge-patch"
        return dict(
            self.raw("PATCH", path, content=json.dumps(change), headers={"content-type": f"application/{kind}+json"})
        )

    def delete(self, obj: Object, *, grace_s: int | None = None, propagation: str = "Background") -> None:
        """Deletes it; one that is gone is fine."""
        metadata = obj["metadata"]
        path = self.path(obj["apiVersion"], obj["kind"], metadata.get("namespace", "default"), metadata["name"])
        options: Object = {"propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.raw("DELETE", path, json=options)
        except Refused as refused:
            if refused.code != 404:
                raise

    def watch(self, path: str, version: str, timeout_s: int = 300) -> Iterator[Object]:
        """The events of one watch from a resource version, until the server ends it."""
        params: dict[str, str | int] = {"watch": 1, "resourceVersion": version, "timeoutSeconds": timeout_s}
        with self._http.stream(
            "GET", path, params=params, timeout=httpx.Timeout(30.0, read=timeout_s + 10.0)
        ) as answer:
            for line in answer.iter_lines():
                yield json.loads(line)

    def _where(self, api_version: str, kind: str) -> tuple[str, bool]:
        if (api_version, kind) not in self._kinds:
            prefix = "/apis" if "/" in api_version else "/api"
            for resource in self.raw("GET", f"{prefix}/{api_version}")["resources"]:
                if "/" not in resource["name"]:
                    self._kinds[api_version, resource["kind"]] = (resource["name"], resource["namespaced"])
        try:
            return self._kinds[api_version, kind]
        except KeyError:
            raise Refused(404, {"message": f"the server knows no {kind} in {api_version}"}) from None


def _is_json(answer: httpx.Response) -> bool:
    return "json" in answer.headers.get("content-type", "")


def connection(kubeconfig: Path) -> tuple[str, ssl.SSLContext, dict[str, str]]:
    """The server's URL, the TLS context and the headers of the kubeconfig's current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = next(item for item in config["contexts"] if item["name"] == config["current-context"])["context"]
    cluster = next(item for item in config["clusters"] if item["name"] == context["cluster"])["cluster"]
    user = next(item for item in config["users"] if item["name"] == context["user"])["user"]
    authority = _material(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate, key = _material(user, "client-certificate"), _material(user, "client-key")
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:  # the ssl module reads certificates from files only
            both.write(certificate + b"\n" + key)
            both.flush()
            tls.load_cert_chain(both.name)
        return cluster["server"], tls, {}
    if "token" in user:
        return cluster["server"], tls, {"authorization": f"Bearer {user['token']}"}
    raise ValueError(f"{kubeconfig}: these tests need a user with a client certificate or a token")


def _material(section: Object, name: str) -> bytes:
    if f"{name}-data" in section:
        return base64.b64decode(section[f"{name}-data"])
    return Path(section[name]).read_bytes() if name in section else b""
