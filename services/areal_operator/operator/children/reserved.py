"""Reserved names: environment variables, labels and annotations that only the operator sets.

Owns the refusals. What a job or a runtime may not set is refused with the field's name, not silently replaced: a
variable that does nothing costs an afternoon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from areal.errors import ConfigError
from areal.plan.cluster_names import LABEL_COMPONENT, LABEL_MANAGED_BY, LABEL_NAME

OPEN_ENV = frozenset({"AREAL_LOG_FORMAT"})
"""Variables of our own that anybody may set."""

_ENV_PREFIXES = ("AREAL_", "PET_", "TORCHELASTIC_")
_ENV_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip

_LABEL_NAMES = frozenset({LABEL_NAME, LABEL_MANAGED_BY, LABEL_COMPONENT, "pod-template-hash"})
_LABEL_PREFIXES = (
    "areal.dev/", "apps.kubernetes.io/", "statefulset.kubernetes.io/", "batch.kubernetes.io/",
)  # fmt: skip
_ANNOTATION_PREFIXES = (
    "areal.dev/",
    "container.apparmor.security.beta.kubernetes.io/",  # would loosen the pod
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)


def is_reserved_env(name: str) -> bool:
    """Whether the operator, the launcher or torchrun sets this variable."""
    return name not in OPEN_ENV and (name in _ENV_NAMES or name.startswith(_ENV_PREFIXES))


def refuse_env(names: Iterable[str], field: str) -> None:
    """Raise ConfigError for the first reserved variable. `field` says where: `spec.podTemplate.trainer.env`."""
    for index, name in enumerate(names):
        if is_reserved_env(name):
            raise ConfigError(
                f"{field}[{index}].name: {name} is set by the operator", fix=f"Remove {name} from {field}."
            )


def refuse_labels(labels: Iterable[str], field: str) -> None:
    """Raise ConfigError for a label by which pods are found."""
    for name in labels:
        if name in _LABEL_NAMES or name.startswith(_LABEL_PREFIXES):
            raise ConfigError(f"{field}: the label {name} is set by the operator", fix=f"Remove {name} from {field}.")


def refuse_annotations(annotations: Iterable[str], field: str) -> None:
    """Raise ConfigError for an annotation that is the operator's or would loosen the pod's confinement."""
    for name in annotations:
        if name.startswith(_ANNOTATION_PREFIXES):
            raise ConfigError(
                f"{field}: the annotation {name} is not for jobs",
                fix=f"Remove {name} from {field}; the platform's runtime may set what concerns confinement.",
            )


def refuse_template(template: Mapping[str, Any], field: str) -> None:
    """Raise ConfigError for what a runtime's pod template may not set: reserved labels, and variables of `main`."""
    metadata = template.get("metadata") or {}
    refuse_labels(metadata.get("labels") or {}, f"{field}.metadata.labels")
    for container in (template.get("spec") or {}).get("containers") or ():
        names = [str(variable.get("name", "")) for variable in container.get("env") or ()]
        refuse_env(names, f"{field}.spec.containers[{container.get('name')}].env")
