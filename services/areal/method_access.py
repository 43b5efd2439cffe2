"""Access control by gRPC method: whose tokens a server knows, and which methods each opens.

Health checks are open, because a kubelet has no token; everything else is closed. A server holds digests, so that
whoever reads them can call nobody. Pure.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

OPEN_PREFIXES = ("/grpc.health.v1.Health/",)  # a probe can't carry a secret


def digest(token: str) -> str:
    """SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


class Refusal(NamedTuple):
    """Why a call may not pass; `known`: the token is somebody's."""

    known: bool
    why: str


@dataclass(frozen=True)
class MethodAccess:
    """What a server knows of its callers."""

    callers: Mapping[str, str]  # digest of a token → whose it is
    methods: Mapping[str, frozenset[str]] | None  # caller → paths, such as /areal.v1.Rollout/Work; None: all to all

    def refusal(self, method: str, metadata: Mapping[str, str]) -> Refusal | None:
        """Why a call of `method` with these headers may not pass; None when it may.

        Tokens are looked up by digest: how long that takes says nothing about a token.
        """
        if method.startswith(OPEN_PREFIXES):
            return None
        scheme, _, given = metadata.get("authorization", "").partition(" ")
        caller = self.callers.get(digest(given.strip())) if scheme.lower() == "bearer" else None
        if caller is None:
            return Refusal(False, "a valid bearer token is missing")
        if self.methods is None or method in self.methods.get(caller, ()):
            return None
        return Refusal(True, f"the token of {caller} doesn't open {method.lstrip('/')} here")


NOBODY = MethodAccess({}, {})
"""Health checks pass, and nothing else."""


def one_token(token: str) -> MethodAccess:
    """One token that opens every method: a service for one client, or a job of an older version."""
    if not token:
        raise ValueError("an empty token would let everybody in")
    return MethodAccess({digest(token): "its owner"}, None)
