"""Restricted pod security: the defaults that every container starts from.

Meets Kubernetes' `restricted` profile and goes beyond it (read-only root, no service links). A platform's runtime may
loosen any of it, where its namespaces allow that; a job can't.
"""

from __future__ import annotations

from areal_operator.operator.children.wanted import Json

USER = 65532  # "nonroot" of the images
GROUP = 65532


def pod_security() -> Json:
    """Of a pod. A volume is handed to the group only when its root isn't the group's already: large ones take hours."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": GROUP,
        "fsGroup": GROUP,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    """Of a container, also of one that the platform adds. The rest comes from the pod."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
