"""Names of a job's objects, ports, mounts and Secret keys on a cluster.

Owns every name on which the pods, the operator and the chart must agree. Pure. Names are never cut: a job's name is at
most 40 characters, so that each of these fits a label's 63 with its suffix.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath

# Labels and annotations

LABEL_JOB = "areal.dev/rljob"
"""The job an object belongs to."""
LABEL_RUN = "areal.dev/run"
"""On the run's own claim where it outlives the job: the job's uid."""
ANNOTATION_JOB, ANNOTATION_RUNTIME = "areal.dev/job-spec", "areal.dev/runtime"
"""On such a claim: the job's spec and its runtime, from which a pod is made that reads the run."""
LABEL_ROLE = "areal.dev/role"
LABEL_CLAIMED_GPUS = "areal.dev/claimed-gpus"  # of a pod that claims them of a device class
"""The role a pod has."""
LABEL_AGENTS_OF = "areal.dev/agents-of"
"""The user's own label of pods whose agents call a job's gateways: the job's name."""
LABEL_VIEWERS = "areal.dev/viewers"
"""The platform's own label of namespaces whose pods (an ingress controller's) may open jobs' pages: `allowed`."""
LABEL_POD_INDEX = "apps.kubernetes.io/pod-index"
"""The ordinal of a StatefulSet's pod, set by Kubernetes."""
SURGE_FROM = 1024  # ordinal of the surge pool's first server: above all that the fleet's own pool may have
LABEL_NAME = "app.kubernetes.io/name"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_COMPONENT = "app.kubernetes.io/component"
APP_NAME = "areal"
MANAGED_BY = "areal-operator"
ANNOTATION_OPERATOR_VERSION = "areal.dev/operator-version"
"""The version of the operator that wrote an object last."""
ANNOTATION_HASH = "areal.dev/template-hash"
"""Of the pod template an object was made from."""


class Role(StrEnum):
    """What a pod of a job is for; `role_specs` has a row for each."""

    CONTROLLER = "controller"
    WORKER = "worker"
    GENERATION = "generation"
    TRAINER = "trainer"
    REWARD = "reward"
    REWARD_CUSTOM = "reward-custom"
    REWARD_MODEL = "reward-model"
    BOXES = "boxes"
    REDIS = "redis"
    GATEWAY = "gateway"
    WEIGHTS = "weights"
    ARCHIVE = "archive"
    VIEW = "view"
    PREPARE = "prepare"
    FINISH = "finish"
    UPLOAD = "upload"


def job_labels(job: str) -> dict[str, str]:
    """Labels of everything that belongs to a job."""
    return {LABEL_NAME: APP_NAME, LABEL_MANAGED_BY: MANAGED_BY, LABEL_JOB: job}


def role_labels(job: str, role: Role) -> dict[str, str]:
    """Labels of a role's objects and pods."""
    return {**job_labels(job), LABEL_ROLE: f"{role}", LABEL_COMPONENT: f"{role}"}


def selector(job: str, role: Role) -> dict[str, str]:
    """The labels by which a role's pods are selected; they never change in the life of a workload."""
    return {LABEL_JOB: job, LABEL_ROLE: f"{role}"}


# Objects of a job `j`

MAIN_CONTAINER = "main"
"""The container of a role's pod that runs the role."""
ENGINE_CONTAINER = "engine"
"""The container of a generation pod that has SGLang, where the runtime names an image for it."""


def workload(job: str, role: Role) -> str:
    """A role's StatefulSet, Deployment or Job, its Service, PDB and NetworkPolicy."""
    return f"{job}-{role}"


def surge(job: str) -> str:
    """The StatefulSet of the servers that an elastic fleet has above its fewest, where they are a pool of their own."""
    return f"{job}-surge"


def pod(job: str, role: Role, index: int) -> str:
    """The pod of a StatefulSet."""
    return f"{workload(job, role)}-{index}"


def job_files(job: str, content: str) -> str:
    """Holds what every pod reads at start: the resolved job and Redis' configuration, named by a hash of both."""
    return f"{job}-job-{content}"


def runtime_config_map(job: str) -> str:
    """Holds the runtime as it was when the job was accepted."""
    return f"{job}-runtime"


def access_secret(job: str) -> str:
    """Holds the job's bearer token and Redis' passwords."""
    return f"{job}-access"


def tls_secret(job: str, whose: str) -> str:
    """Holds the certificate of a role or of the operator; of `authority`, the keys that sign them."""
    return f"{job}-tls-{whose}"


def run_claim(job: str) -> str:
    """The volume of the run directory, when the job names no claim of its own."""
    return f"{job}-run"


def service_account(job: str) -> str:
    """The account of a job's pods; it may do nothing."""
    return job


# Addresses


def front(job: str, role: Role) -> str:
    """The Service with one address for all pods of a role whose pods are dialled one by one, too."""
    return f"{workload(job, role)}-front"


def service_host(job: str, namespace: str, role: Role) -> str:
    """The DNS name of a role's Service, without the cluster's domain: search paths add it."""
    return f"{workload(job, role)}.{namespace}.svc"


def pod_host(job: str, namespace: str, role: Role, index: int) -> str:
    """The DNS name of one pod of a StatefulSet."""
    return f"{pod(job, role, index)}.{service_host(job, namespace, role)}"


def front_host(job: str, namespace: str, role: Role) -> str:
    """The DNS name of a role's front."""
    return f"{front(job, role)}.{namespace}.svc"


GRPC_PORT = 9000
METRICS_PORT = 9100
LAUNCHER_PORT = 9001
ENGINE_PORT = 30000
"""On loopback: only the agent in the same pod speaks to the engine."""
REDIS_PORT = 6379
RENDEZVOUS_PORT = 29500
HTTP_PORT = 8000

PORT_NUMBERS: Mapping[str, int] = {
    "grpc": GRPC_PORT, "metrics": METRICS_PORT, "engine": ENGINE_PORT, "main": REDIS_PORT,
    "rendezvous": RENDEZVOUS_PORT, "http": HTTP_PORT,
}  # fmt: skip
"""What a port of a role is for → its number in pods; the same words as in a resolved job.

Pods of one gang of trainers also reach each other on ports of their libraries' choosing.
"""


BESIDE = "beside"
"""What a launcher's health calls the servers that are in its trainer's pod."""
_BESIDE_TRAINER = 10  # from a port's number to that of the first server


def ports_beside_trainer(index: int) -> dict[str, int]:
    """Ports of a server in the trainer's pod, whose network it shares: none is the trainer's own."""
    return {name: PORT_NUMBERS[name] + _BESIDE_TRAINER + index for name in ("grpc", "metrics", "engine")}


def port_word(purpose: str) -> str:
    """Name of a port in pods and Services: Redis' one port is `main` in a resolved job."""
    return "redis" if purpose == "main" else purpose


# Paths in pods

JOB_DIR = PurePosixPath("/areal/job")
"""The ConfigMap of the job."""
ACCESS_DIR = PurePosixPath("/areal/access")
"""The items of the job's Secret that this role may read."""
TLS_DIR = PurePosixPath("/areal/tls")
"""The role's certificate, and the authorities that it trusts, where the runtime asks for TLS."""
RUN_DIR = PurePosixPath("/areal/run")
"""The run directory: a shared volume, writable."""
CLAIMS_DIR = PurePosixPath("/areal/claims")
"""Volumes named by `pvc://` addresses, one directory a claim, read-only."""
STORE_DIR = PurePosixPath("/areal/store")
"""The Secret with the credentials of the job's object store, in pods that write or read there."""
CLUSTER_DIR = PurePosixPath("/areal/cluster")
"""The certificate of the cluster's API server, in pods that ask it something."""
CLUSTER_CA_MAP, CLUSTER_CA_KEY = "kube-root-ca.crt", "ca.crt"
"""The ConfigMap that Kubernetes keeps in every namespace, and the file in it."""
RECIPE_DIR = PurePosixPath("/areal/recipe")
"""The user's ConfigMap with the recipe, in the prepare pod."""
KERNELS_DIR = PurePosixPath("/areal/kernels")
"""Compiled kernels, where the job names a claim that keeps them."""
ENGINE_DIR = PurePosixPath("/areal/engine")
"""What an agent shares with the container of its engine."""
REDIS_DATA_DIR = PurePosixPath("/data")
"""Redis' own volume."""
SCRATCH_DIR = PurePosixPath("/tmp")
"""Emptied with the pod; the only other place a role may write to."""
SHARED_MEMORY_DIR = PurePosixPath("/dev/shm")
TOOLCHAINS_DIR = PurePosixPath("/var/tmp")
"""What is made once for a toolchain, in reward pods whose programs aren't Python. Cells can read it."""

HUB_TOKEN_KEY = "hub-token"  # of the user's Secret, in the pod that downloads the model
RESOLVED_KEY = "resolved.json"
REDIS_CONF_KEY = "redis.conf"


def run_sub_path(job: str, uid: str) -> str:
    """Path of the run directory on the volume, such that a new job of the same name starts empty."""
    return f"rljobs/{job}-{uid[:8]}"


def claim_dir(claim: str) -> PurePosixPath:
    """Mount path of a volume named by `pvc://<claim>/…`."""
    return CLAIMS_DIR / claim


# The Secret

TOKEN_KEY = "token"  # the one token of a job that an older version made
DIGESTS_KEY = "digests.json"
SESSION_KEY = "session.key"
ACL_KEY = "users.acl"


def token_key(caller: str) -> str:
    """The key, and file, of a caller's token."""
    return f"{TOKEN_KEY}.{caller}"


def password_key(user: str) -> str:
    """The key, and file, of a Redis login's password."""
    return f"{user}.password"


def url_key(user: str) -> str:
    """The file of a login's Redis URL, when Redis isn't the job's own."""
    return f"{user}.url"


# Environment by downward API

ENV_INDEX = "AREAL_INDEX"
ENV_POD_IP = "AREAL_POD_IP"
ENV_POD_NAME = "AREAL_POD_NAME"
ENV_ADDRESS = "AREAL_ADDRESS"  # outside pods: of the host, where a job has several

ENV_ENGINE_PLACE = "AREAL_ENGINE_PLACE"  # in generation pods whose engine has a container of its own: ENGINE_DIR
SGLANG_PYTHON = "SGLANG_PYTHON"  # of an image, or set by hand: the Python that has SGLang, apart from the agent's
ENV_CLEAN = "AREAL_CLEAN"
"""Set in the finish pod where checkpoints and published versions are removed after the audit."""
ENV_SANDBOX_KERNEL = "AREAL_SANDBOX_KERNEL"
"""Set to kata in reward pods whose RuntimeClass the runtime lists as virtual machines: nothing inside can tell."""
