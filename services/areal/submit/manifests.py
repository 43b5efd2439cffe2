"""The objects that `areal submit` makes beside the job: a ConfigMap with the recipe, a claim, a pod to upload through.

Pure. The claim is the one that the operator would make, so that it goes on with it. The pod is confined as the
restricted level asks, and takes image, node and credentials from the runtime's tools role.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from areal.errors import ConfigError
from areal.plan.cluster_names import (
    LABEL_MANAGED_BY,
    MAIN_CONTAINER,
    Role,
    job_labels,
    role_labels,
    run_claim,
    workload,
)
from areal.spec import RLJob
from areal.spec.runtime import RuntimeSpec, Volume

Json = dict[str, Any]

MANAGER = "areal-submit"
UPLOAD_DIR = "/areal/upload"
RECEIVER_ENV = "UPLOAD_RECEIVER"
RECEIVE = ["python3", "-c", f"import os; exec(os.environ['{RECEIVER_ENV}'])", UPLOAD_DIR]
"""What is executed in the pod."""
LARGEST_RECIPE = 900 << 10  # a ConfigMap holds 1 MiB with everything around it

_NOBODY = 65532
_DEADLINE_S = 24 * 3600  # a forgotten pod ends by itself
_WAIT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
_PLACEMENT = ("affinity", "imagePullSecrets", "nodeSelector", "priorityClassName", "runtimeClassName", "schedulerName")
_OF_MAIN = ("image", "imagePullPolicy", "resources")


def recipe_config_map_name(job: str) -> str:
    return f"{job}-recipe"


def recipe_config_map(job: str, namespace: str, key: str, text: str) -> Json:
    """The recipe as the pods get it."""
    if len(text.encode()) > LARGEST_RECIPE:
        raise ConfigError(
            f"the recipe has {len(text.encode())} bytes, a ConfigMap holds {LARGEST_RECIPE}",
            fix="Put the recipe on a volume and name it pvc://claim/path in recipe.file.",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(recipe_config_map_name(job), namespace, job_labels(job)),
        "data": {key: text},
    }


def claim(job: str, namespace: str, volume: Volume) -> Json | None:
    """The job's own claim; None when the job names one that exists."""
    if volume.claim_name is not None:
        return None
    spec: Json = {
        "accessModes": [volume.access_mode],
        "resources": {"requests": {"storage": _quantity(volume.size_bytes)}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    metadata = _metadata(run_claim(job), namespace, job_labels(job))
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def upload_pod(job: RLJob, namespace: str, claim_name: str, runtime: RuntimeSpec) -> Json:
    """A pod that mounts the volume and waits. Raises ConfigError when the runtime names no image for tools."""
    name = job.metadata.name
    placement: Json = {}
    main: Json = {}
    env: dict[str, Json] = {}
    tolerations: list[Json] = []
    for template in (runtime.template, runtime.template_of("tools"), _job_patch(job)):
        spec = template.get("spec") or {}
        placement |= {field: spec[field] for field in _PLACEMENT if spec.get(field)}
        tolerations += spec.get("tolerations") or []
        ours: Json = next((each for each in spec.get("containers") or [] if each.get("name") == MAIN_CONTAINER), {})
        main |= {field: ours[field] for field in _OF_MAIN if ours.get(field)}
        env |= {variable["name"]: variable for variable in ours.get("env") or []}
    if "image" not in main:
        raise ConfigError(
            "the runtime names no image for tools, which the upload needs",
            fix="Set image of the container main in the runtime's spec.roles.tools.template.",
        )
    receiver = resources.files("areal.submit").joinpath("receive.py").read_text(encoding="utf-8")
    container: Json = {
        "name": MAIN_CONTAINER,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        **main,
        "command": ["python3", "-c", _WAIT],
        "env": [*env.values(), {"name": RECEIVER_ENV, "value": receiver}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "run", "mountPath": UPLOAD_DIR}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(workload(name, Role.UPLOAD), namespace, role_labels(name, Role.UPLOAD)),
        "spec": {
            **placement,
            **({"tolerations": tolerations} if tolerations else {}),
            "activeDeadlineSeconds": _DEADLINE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _NOBODY,
                "runAsGroup": _NOBODY,
                "fsGroup": _NOBODY,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": claim_name}}],
        },
    }


def owned(obj: Json, job: Json) -> Json:
    """The patch by which an object goes when its job does."""
    metadata = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def _quantity(size: int) -> str:
    for unit, bytes_each in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        if size % bytes_each == 0:
            return f"{size // bytes_each}{unit}"
    return str(size)


def _job_patch(job: RLJob) -> Json:
    """What the job's podTemplate says of tools, in a template's shape."""
    patch = job.spec.pod_template.tools
    kept = {"requests": patch.resources.requests, "limits": patch.resources.limits}
    main = {
        "name": MAIN_CONTAINER,
        "env": [variable.model_dump() for variable in patch.env],
        "resources": {name: dict(amounts) for name, amounts in kept.items() if amounts},
    }
    return {
        "spec": {
            "containers": [main],
            "nodeSelector": dict(patch.node_selector),
            "tolerations": [toleration.model_dump(exclude_none=True) for toleration in patch.tolerations],
            "runtimeClassName": patch.runtime_class_name,
            "priorityClassName": patch.priority_class_name or job.spec.scheduling.priority_class_name,
        }
    }


def _metadata(name: str, namespace: str, labels: dict[str, str]) -> Json:
    return {"name": name, "namespace": namespace, "labels": {**labels, LABEL_MANAGED_BY: MANAGER}}
