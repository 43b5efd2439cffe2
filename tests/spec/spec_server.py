"""What an API server with our definitions makes of job files: posted as they are, many at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kube.harness.client import Client, Refused

API = "areal.dev/v1alpha1"
Object = dict[str, Any]
AT_ONCE = 16  # posts: the server judges each in a thread of its own


def create(admin: Client, namespace: str, text: str, *, keep: bool = False, validation: str = "Strict") -> Object:
    """Creates a job from the text of its file, as a dry run unless told otherwise; raises Refused."""
    text = re.sub(r"^  namespace: .*\n", "", text, flags=re.M)
    path = f"/apis/{API}/namespaces/{namespace}/rljobs"
    params = {"fieldValidation": validation} | ({} if keep else {"dryRun": "All"})
    headers = {"content-type": "application/yaml"}
    return dict(admin.raw("POST", path, content=text.encode(), headers=headers, params=params))


def verdicts(admin: Client, namespace: str, texts: Iterable[str]) -> list[Object | Refused]:
    """What the server makes of each text, or its refusal."""

    def judged(text: str) -> Object | Refused:
        try:
            return create(admin, namespace, text)
        except Refused as refused:
            return refused

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(judged, texts))
