"""The objects that commands make beside a job: `areal submit` a ConfigMap with the recipe, a claim, a pod to upload
through; `areal view` the pod of a temporary page.

Pure. The claim is the one that the operator would make, so that it goes on with it. The pod is confined as the
restricted level asks, and takes image, node and credentials from the runtime's tools role.
"""

from importlib import resources
from typing import Any

from areal.errors import ConfigError
from areal.plan import cluster_names as names
from areal.plan.cluster_names import MAIN_CONTAINER, Role, job_labels, role_labels
from areal.spec import RLJob
from areal.spec.quantity import kubernetes_bytes
from areal.spec.runtime import RuntimeSpec, Volume

from areal_operator.kube.restricted import container_security, pod_security

Json = dict[str, Any]

MANAGER = "areal-submit"
UPLOAD_DIR = "/areal/upload"
RECEIVER_ENV = "UPLOAD_RECEIVER"
RECEIVE = ["python3", "-c", f"import os; exec(os.environ['{RECEIVER_ENV}'])", UPLOAD_DIR]  # What is executed in the pod
LARGEST_RECIPE = 900 << 10  # a ConfigMap holds 1 MiB with everything around it

_DEADLINE_S = 24 * 3600  # a forgotten pod ends by itself
_PAGE_DEADLINE_S = 8 * 3600
_INDEX_BYTES = "2Gi"  # of the recording, as in the pod of a job's page
_WAIT = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {15}); signal.sigwait({15})"
_PLACEMENT = ("affinity", "imagePullSecrets", "nodeSelector", "priorityClassName", "runtimeClassName", "schedulerName")
_OF_MAIN = ("image", "imagePullPolicy", "resources")


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
        "metadata": _metadata(f"{job}-recipe", namespace, job_labels(job)),
        "data": {key: text},
    }


def claim(job: str, namespace: str, volume: Volume) -> Json | None:
    """The job's own claim; None when the job names one that exists."""
    if volume.claim_name is not None:
        return None
    spec: Json = {
        "accessModes": [volume.access_mode],
        "resources": {"requests": {"storage": kubernetes_bytes(volume.size_bytes)}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    metadata = _metadata(names.run_claim(job), namespace, job_labels(job))
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def upload_pod(job: RLJob, namespace: str, claim_name: str, runtime: RuntimeSpec) -> Json:
    """A pod that mounts the volume and waits. Raises ConfigError when the runtime names no image for tools."""
    name = job.metadata.name
    receiver = resources.files("areal_operator.submit").joinpath("receive.py").read_text(encoding="utf-8")
    pod = _waiting_pod(job, runtime, claim_name, {"name": "run", "mountPath": UPLOAD_DIR}, _DEADLINE_S)
    pod["metadata"] |= _metadata(names.workload(name, Role.UPLOAD), namespace, pod["metadata"]["labels"])
    pod["spec"]["containers"][0]["env"].append({"name": RECEIVER_ENV, "value": receiver})
    return pod


def page_pod(job: RLJob, uid: str, namespace: str, claim_name: str, runtime: RuntimeSpec, suffix: str) -> Json:
    """A pod that mounts the run's directory read-only and waits; it goes with the job.

    Volumes of the runtime's templates are mounted, too: the page's environment may come from one.
    """
    name = job.metadata.name
    mount = {"name": "run", "mountPath": page_dir(name), "subPath": names.run_sub_path(name, uid), "readOnly": True}
    pod = _waiting_pod(job, runtime, claim_name, mount, _PAGE_DEADLINE_S)
    metadata = _metadata(f"{names.workload(name, Role.VIEW)}-{suffix}", namespace, pod["metadata"]["labels"])
    owner = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "name": name, "uid": uid}
    pod["metadata"] |= {**metadata, "ownerReferences": [owner]}
    spec: Json = pod["spec"]
    container = spec["containers"][0]
    spec["volumes"].append({"name": "scratch", "emptyDir": {"sizeLimit": _INDEX_BYTES}})
    container["volumeMounts"].append({"name": "scratch", "mountPath": str(names.SCRATCH_DIR)})
    for template in (runtime.template, runtime.template_of("tools")):
        theirs = template.get("spec") or {}
        main: Json = next((each for each in theirs.get("containers") or [] if each.get("name") == MAIN_CONTAINER), {})
        spec["volumes"] += _new(theirs.get("volumes"), spec["volumes"], "name")
        container["volumeMounts"] += _new(main.get("volumeMounts"), container["volumeMounts"], "mountPath")
    return pod


def page_dir(job: str) -> str:
    """The run's directory in the pod of a temporary page, which names the run."""
    return str(names.RUN_DIR / job)


def _new(listed: list[Json] | None, known: list[Json], key: str) -> list[Json]:
    return [each for each in listed or [] if each[key] not in {other[key] for other in known}]


def _waiting_pod(job: RLJob, runtime: RuntimeSpec, claim_name: str, mount: Json, deadline_s: int) -> Json:
    """A confined pod with the tools' image and placement, the claim mounted as `mount` says; without a name."""
    placement: Json = {}
    labels, annotations = dict[str, str | None](), dict[str, str | None]()
    main: Json = {}
    env: dict[str, Json] = {}
    tolerations: list[Json] = []
    for template in (runtime.template, runtime.template_of("tools"), _job_patch(job)):
        spec, marks = template.get("spec") or {}, template.get("metadata") or {}
        labels |= marks.get("labels") or {}
        annotations |= marks.get("annotations") or {}
        placement |= {field: spec[field] for field in _PLACEMENT if spec.get(field)}
        tolerations += spec.get("tolerations") or []
        ours: Json = next((each for each in spec.get("containers") or [] if each.get("name") == MAIN_CONTAINER), {})
        main |= {field: ours[field] for field in _OF_MAIN if ours.get(field)}
        env |= {variable["name"]: variable for variable in ours.get("env") or []}
    if "image" not in main:
        raise ConfigError(
            "the runtime names no image for tools, which this pod needs",
            fix="Set image of the container main in the runtime's spec.roles.tools.template.",
        )
    container: Json = {
        "name": MAIN_CONTAINER,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        **main,
        "command": ["python3", "-c", _WAIT],
        "env": [*env.values()],
        "securityContext": container_security(),
        "volumeMounts": [mount],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {**_given(labels), **role_labels(job.metadata.name, Role.UPLOAD)},
            **({"annotations": given} if (given := _given(annotations)) else {}),
        },
        "spec": {
            **placement,
            **({"tolerations": tolerations} if tolerations else {}),
            "activeDeadlineSeconds": deadline_s,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "securityContext": pod_security(),
            "containers": [container],
            "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": claim_name}}],
        },
    }


def _given(marks: dict[str, str | None]) -> dict[str, str]:
    """Without the nulls, by which a template removes what another has."""
    return {name: value for name, value in marks.items() if value is not None}


def owned(obj: Json, job: Json) -> Json:
    """The patch by which an object goes when its job does."""
    metadata = job["metadata"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def _job_patch(job: RLJob) -> Json:
    """The job's podTemplate for tools, in a template's shape."""
    patch = job.spec.pod_template.tools
    kept = {"requests": patch.resources.requests, "limits": patch.resources.limits}
    main = {
        "name": MAIN_CONTAINER,
        "env": [variable.in_pod() for variable in patch.env],
        "resources": {name: dict(amounts) for name, amounts in kept.items() if amounts},
    }
    return {
        "metadata": {"labels": dict(patch.labels), "annotations": dict(patch.annotations)},
        "spec": {
            "containers": [main],
            "nodeSelector": dict(patch.node_selector),
            "tolerations": [toleration.model_dump(exclude_none=True) for toleration in patch.tolerations],
            "runtimeClassName": patch.runtime_class_name,
            "priorityClassName": patch.priority_class_name or job.spec.scheduling.priority_class_name,
        },
    }


def _metadata(name: str, namespace: str, labels: dict[str, str]) -> Json:
    return {"name": name, "namespace": namespace, "labels": {**labels, names.LABEL_MANAGED_BY: MANAGER}}
