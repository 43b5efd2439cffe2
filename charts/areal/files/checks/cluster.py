"""One HTTP call to the API server with the pod's own account. The standard library only."""

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("AREAL_CHECK_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))


def namespace():
    """The namespace of this pod."""
    return os.environ["POD_NAMESPACE"]


def call(method, path, body=None, content_type="application/json"):
    """Status and decoded answer of one request."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Accept": "application/json"}
    data = None
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), content_type
    request = urllib.request.Request(f"https://{host}:{port}{path}", data=data, headers=headers, method=method)
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, {"message": text}
