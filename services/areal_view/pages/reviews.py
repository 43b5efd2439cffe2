"""Authorization of the page's visitors by a cluster's API server: who holds a token, and what they may read.

Owns the requests and what their answers mean. Every question is asked with the visitor's own token, so whoever asks
needs no right and has no credential.
"""

import http.client
import json
import os
import ssl
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from areal.errors import ConfigError
from areal_operator.kube.resources import RLJOBS

_TIMEOUT_S = 10.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_SUBJECTS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class Review(Enum):
    """What the API server thinks of a visitor."""

    ALLOWED = auto()
    FORBIDDEN = auto()  # it knows them, and they may not read the job
    UNKNOWN = auto()  # it does not know the token
    SILENT = auto()  # it can't be asked


_MEANING = {201: Review.ALLOWED, 401: Review.UNKNOWN, 403: Review.FORBIDDEN}  # of a review's HTTP status


@dataclass(frozen=True)
class ApiServer:
    """Where the API server is, and whose certificate it has."""

    host: str
    port: int
    trust: ssl.SSLContext

    @classmethod
    def of_pod(cls, ca: Path) -> "ApiServer":
        """As every pod is told. Raises ConfigError outside of a pod."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        try:
            trust = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise ConfigError(
                f"can't read {ca}: {error}", fix="the operator mounts it: is this a job's pod?"
            ) from error
        if not host or not port:
            raise ConfigError(
                "there is no KUBERNETES_SERVICE_HOST", fix="`areal view` shows a run outside of a cluster"
            )
        return cls(host, int(port), trust)

    def ask(self, path: str, token: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """GET, or POST of `body`: status and body of the answer; status 0 when there is none."""
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_S, context=self.trust)
        try:
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            if body is None:
                connection.request("GET", path, headers=headers)
            else:
                connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            told = answer.read()
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()
        try:
            found = json.loads(told)
        except ValueError:  # as it says that there is no such resource
            found = {}
        return answer.status, found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class OwnReview:
    """May the holder of a token `get` this job?"""

    server: ApiServer
    namespace: str
    job: str

    def __call__(self, token: str) -> Review:
        if not _is_token(token):
            return Review.UNKNOWN
        asked = {"group": RLJOBS.group, "resource": RLJOBS.plural, "namespace": self.namespace, "name": self.job}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", **asked}},
        }
        status, answer = self.server.ask(_REVIEWS, token, body)
        if status == 201 and answer.get("status", {}).get("allowed") is not True:
            return Review.FORBIDDEN
        return _MEANING.get(status, Review.SILENT)


@dataclass(frozen=True)
class KnownReview:
    """Does the API server know the holder of a token?"""

    server: ApiServer

    def __call__(self, token: str) -> Review:
        status, _ = self._ask(token)
        return _MEANING.get(status, Review.SILENT)

    def name_of(self, token: str) -> str:
        """As whom the API server knows them; empty when it does not."""
        _, answer = self._ask(token)
        return str(answer.get("status", {}).get("userInfo", {}).get("username", ""))

    def _ask(self, token: str) -> tuple[int, dict[str, Any]]:
        if not _is_token(token):
            return 401, {}
        return self.server.ask(
            _SUBJECTS, token, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        )


def _is_token(text: str) -> bool:
    """Whether it can stand in a header; an empty one would make the visitor `system:anonymous`."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
