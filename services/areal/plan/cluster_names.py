"""What a job's objects, ports, mounts and Secret keys are called on a cluster.

Owns every name on which the pods, the operator and the chart must agree. Pure. Names are never cut: a job's name is at
most 40 characters, so that each of these fits a label's 63 with its suffix.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath

# Labels and annotations

LABEL_JOB = "areal.dev/rljob"
"""The job an object belongs to."""
LABEL_ROLE = "areal.dev/role"
"""The role a pod has."""
LABEL_POD_INDEX = "apps.kubernetes.io/pod-index"
"""The ordinal of a StatefulSet's pod, set by Kubernetes."""
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
    """What a pod of a job is for. The first seven run while the job runs; the others are batch Jobs."""

    CONTROLLER = "controller"
    WORKER = "worker"
    GENERATION = "generation"
    TRAINER = "trainer"
    REWARD = "reward"
    REWARD_CUSTOM = "reward-custom"
    REDIS = "redis"
    PREPARE = "prepare"
    FINISH = "finish"
    UPLOAD = "upload"


STATEFUL_SETS = (Role.REDIS, Role.GENERATION, Role.TRAINER, Role.WORKER)
"""Roles whose pods have an index and an address of their own."""
DEPLOYMENTS = (Role.CONTROLLER, Role.REWARD, Role.REWARD_CUSTOM)
"""Roles of which any pod is as good as another."""
BATCH_JOBS = (Role.PREPARE, Role.FINISH)
"""Roles that run to an end, before and after all others."""
LONG_RUNNING = (*STATEFUL_SETS, *DEPLOYMENTS)


def template_key(role: Role) -> str:
    """The field of `podTemplate` and of a runtime's `roles` that speaks for a role: `rewardCustom`, `tools`."""
    match role:
        case Role.REWARD_CUSTOM:
            return "rewardCustom"
        case Role.PREPARE | Role.FINISH | Role.UPLOAD:
            return "tools"
        case _:
            return role.value


def job_labels(job: str) -> dict[str, str]:
    """Labels of everything that belongs to a job."""
    return {LABEL_NAME: APP_NAME, LABEL_MANAGED_BY: MANAGED_BY, LABEL_JOB: job}


def role_labels(job: str, role: Role) -> dict[str, str]:
    """Labels of a role's objects and pods."""
    return {**job_labels(job), LABEL_ROLE: role.value, LABEL_COMPONENT: role.value}


def selector(job: str, role: Role) -> dict[str, str]:
    """The labels by which a role's pods are selected; they never change in the life of a workload."""
    return {LABEL_JOB: job, LABEL_ROLE: role.value}


# Objects of a job `j`

MAIN_CONTAINER = "main"
"""The container of a role's pod that runs the role."""


def workload(job: str, role: Role) -> str:
    """A role's StatefulSet, Deployment or Job, its Service, PDB and NetworkPolicy."""
    return f"{job}-{role.value}"


def pod(job: str, role: Role, index: int) -> str:
    """The pod of a StatefulSet."""
    return f"{workload(job, role)}-{index}"


def job_config_map(job: str) -> str:
    """Holds what every pod reads at start: the resolved job and Redis' configuration."""
    return f"{job}-job"


def runtime_config_map(job: str) -> str:
    """Holds the runtime as it was when the job was accepted."""
    return f"{job}-runtime"


def access_secret(job: str) -> str:
    """Holds the job's bearer token and Redis' passwords."""
    return f"{job}-access"


def run_claim(job: str) -> str:
    """The volume of the run directory, when the job names no claim of its own."""
    return f"{job}-run"


def service_account(job: str) -> str:
    """The account of a job's pods; it may do nothing."""
    return job


# Addresses


def service_host(job: str, namespace: str, role: Role) -> str:
    """The DNS name of a role's Service, without the cluster's domain: search paths add it."""
    return f"{workload(job, role)}.{namespace}.svc"


def pod_host(job: str, namespace: str, role: Role, index: int) -> str:
    """The DNS name of one pod of a StatefulSet."""
    return f"{pod(job, role, index)}.{service_host(job, namespace, role)}"


GRPC_PORT = 9000
METRICS_PORT = 9100
LAUNCHER_PORT = 9001
ENGINE_PORT = 30000
"""On loopback: only the agent in the same pod speaks to the engine."""
REDIS_PORT = 6379
RENDEZVOUS_PORT = 29500

PORTS: Mapping[Role, Mapping[str, int]] = {
    Role.REDIS: {"main": REDIS_PORT},
    Role.GENERATION: {"grpc": GRPC_PORT, "metrics": METRICS_PORT, "engine": ENGINE_PORT},
    Role.TRAINER: {"grpc": GRPC_PORT, "metrics": METRICS_PORT, "rendezvous": RENDEZVOUS_PORT},
    Role.CONTROLLER: {"grpc": GRPC_PORT, "metrics": METRICS_PORT},
    Role.WORKER: {"grpc": GRPC_PORT, "metrics": METRICS_PORT},
    Role.REWARD: {"grpc": GRPC_PORT, "metrics": METRICS_PORT},
    Role.REWARD_CUSTOM: {"grpc": GRPC_PORT, "metrics": METRICS_PORT},
}
"""Role → what a port is for → port; the same words as in a resolved job. Every pod but Redis' has a launcher, too.

Pods of one gang of trainers also reach each other on ports of their libraries' choosing.
"""


# Paths in pods

JOB_DIR = PurePosixPath("/areal/job")
"""The ConfigMap of the job."""
ACCESS_DIR = PurePosixPath("/areal/access")
"""The items of the job's Secret that this role may read."""
RUN_DIR = PurePosixPath("/areal/run")
"""The run directory: a shared volume, writable."""
CLAIMS_DIR = PurePosixPath("/areal/claims")
"""Volumes named by `pvc://` addresses, one directory a claim, read-only."""
RECIPE_DIR = PurePosixPath("/areal/recipe")
"""The user's ConfigMap with the recipe, in the prepare pod."""
REDIS_DATA_DIR = PurePosixPath("/data")
"""Redis' own volume."""
SCRATCH_DIR = PurePosixPath("/tmp")
"""Emptied with the pod; the only other place a role may write to."""
SHARED_MEMORY_DIR = PurePosixPath("/dev/shm")
TOOLCHAINS_DIR = PurePosixPath("/var/tmp")
"""What is made once for a toolchain, in reward pods whose programs aren't Python. Cells can read it."""

RUN_DIR_WRITERS = (Role.CONTROLLER, Role.WORKER, Role.TRAINER, Role.PREPARE, Role.FINISH)
"""Roles that write to the run directory. Generation and reward pods read weights and the recipe from it."""

RESOLVED_KEY = "resolved.json"
REDIS_CONF_KEY = "redis.conf"


def run_sub_path(job: str, uid: str) -> str:
    """Where on the volume the run directory is, so that a new job of the same name starts empty."""
    return f"rljobs/{job}-{uid[:8]}"


def claim_dir(claim: str) -> PurePosixPath:
    """Where a volume named by `pvc://<claim>/…` is mounted."""
    return CLAIMS_DIR / claim


# The Secret

TOKEN_KEY = "token"
ACL_KEY = "users.acl"


def password_key(user: str) -> str:
    """The key, and file, of a Redis login's password."""
    return f"{user}.password"


def url_key(user: str) -> str:
    """The file of a login's Redis URL, when Redis isn't the job's own."""
    return f"{user}.url"


ACCESS_KEYS: Mapping[Role, tuple[str, ...]] = {
    Role.CONTROLLER: (TOKEN_KEY, password_key("controller")),
    Role.TRAINER: (TOKEN_KEY, password_key("trainer")),
    Role.WORKER: (TOKEN_KEY, password_key("worker")),
    Role.GENERATION: (TOKEN_KEY,),
    Role.REWARD: (TOKEN_KEY,),
    Role.REWARD_CUSTOM: (TOKEN_KEY,),
    Role.REDIS: (ACL_KEY,),
    Role.PREPARE: (),
    Role.FINISH: (),
}
"""Which keys of the Secret a role's pod gets. With an external Redis, no password but the user's own Secret's item."""

REDIS_LOGIN: Mapping[Role, str] = {Role.CONTROLLER: "controller", Role.TRAINER: "trainer", Role.WORKER: "worker"}
"""Roles that talk to Redis, and as whom; also the key of an external Redis' Secret."""

# Environment by downward API

ENV_INDEX = "AREAL_INDEX"
ENV_POD_IP = "AREAL_POD_IP"
ENV_POD_NAME = "AREAL_POD_NAME"

ENV_SANDBOX_KERNEL = "AREAL_SANDBOX_KERNEL"
"""Set to kata in reward pods whose RuntimeClass the runtime lists as virtual machines: nothing inside can tell."""


def launch_command(role: Role) -> list[str]:
    """What a long-running role's container runs as its first process.

    Redis is nobody's child: it is reached by its clients only, and its pod has no token to serve others with.
    """
    if role is Role.REDIS:
        return ["redis-server", str(JOB_DIR / REDIS_CONF_KEY)]
    job = ["--job", str(JOB_DIR / RESOLVED_KEY)]
    return ["areal-launch", *job, "--role", role.value, "--port", str(LAUNCHER_PORT)]


def tool_command(role: Role) -> list[str]:
    """What the container of a batch Job runs."""
    return ["areal-role", role.value, "--job", str(JOB_DIR / RESOLVED_KEY)]
