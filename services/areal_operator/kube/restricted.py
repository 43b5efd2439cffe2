"""Security contexts of Kubernetes' `restricted` profile: every pod that is made for a job has them."""

from areal_operator.kube.resources import Json

_NOBODY = 65532  # "nonroot" of the images


def pod_security() -> Json:
    """Context of a pod, which a runtime may loosen and a job can't.

    A volume is handed to the group only when its root isn't the group's already: large ones take hours.
    """
    return {
        "runAsNonRoot": True,
        "runAsUser": _NOBODY,
        "runAsGroup": _NOBODY,
        "fsGroup": _NOBODY,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Json:
    """Context of a container, also of one that the platform adds. The rest comes from the pod."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
