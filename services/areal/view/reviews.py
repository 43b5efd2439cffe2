"""Authorization of the page's visitors by a cluster's API server: who holds a token, and whether they may read a job.

Owns the requests and what their answers mean. `OwnReview` asks with the visitor's own token (SelfSubjectAccessReview),
so whoever asks needs no right and has no credential. A token is sent to the API server and kept nowhere.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from areal.errors import ConfigError
from areal.kube.resources import RLJOBS

_TIMEOUT_S = 10.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Review(Enum):
    """What the API server thinks of a visitor."""

    ALLOWED = auto()
    FORBIDDEN = auto()  # it knows them, and they may not read the job
    UNKNOWN = auto()  # it does not know the token
    SILENT = auto()  # it can't be asked


@dataclass(frozen=True)
class ApiServer:
    """Where the API server is, and whose certificate it has."""

    host: str
    port: int
    trust: ssl.SSLContext

    @classmethod
    def of_pod(cls, ca: Path) -> ApiServer:
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

    def post(self, path: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer; status 0 when there is none."""
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_S, context=self.trust)
        try:
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            found = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
        finally:
            connection.close()
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
        asked = {
            "verb": "get", "group": RLJOBS.group, "resource": RLJOBS.plural, "namespace": self.namespace,
            "name": self.job,
        }  # fmt: skip
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        status, answer = self.server.post(_REVIEWS, token, body)
        match status:
            case 201:
                return Review.ALLOWED if answer.get("status", {}).get("allowed") is True else Review.FORBIDDEN
            case 401:
                return Review.UNKNOWN
            case 403:
                return Review.FORBIDDEN
        return Review.SILENT


def _is_token(text: str) -> bool:
    """Whether it can stand in a header; an empty one would make the visitor `system:anonymous`."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
