"""Cluster-only blocks of a job: runtime, volume, scheduling, deadlines, failures, pods.

Owns the blocks that `areal run` ignores and the operator obeys. All have defaults: a job file without any of them runs
on both.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from areal.spec.block import Mutability, SpecBlock, fixed, knob, resting
from areal.spec.quantity import Bytes
from areal.spec.text import Amount, AnnotationValue, EnvName, EnvValue, FiniteMapping, LabelKey, LabelValue, Mount, Name

MANAGER = "areal.dev/operator"
DEFAULT_VOLUME_BYTES = 20 << 30
DEFAULT_ACCESS_MODE = "ReadWriteMany"

AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
RuntimeKind = Literal["ClusterRLRuntime", "RLRuntime"]
Retain = Literal["Delete", "Model", "All"]
JobRole = Literal[
    "controller",
    "worker",
    "generation",
    "trainer",
    "reward",
    "reward-custom",
    "reward-model",
    "redis",
    "weights",
    "archive",
    "gateway",
    "boxes",
]

_YEAR_S = 366 * 86400

hot = partial(knob, change=Mutability.RESUME, cluster=Mutability.LIVE)  # the operator reads it when it decides
duration = partial(hot, unit="seconds", ge=1, le=_YEAR_S)


class RuntimeRef(SpecBlock):
    """The platform's runtime: images and pod templates of every role."""

    kind: RuntimeKind = fixed("ClusterRLRuntime", what="One of the whole cluster, or of the job's namespace.")
    name: Name = fixed(what="The runtime's name.")


class Rdma(SpecBlock):
    """Network cards for collectives between nodes, as their device plugin calls them."""

    resource: LabelKey = resting(what="The extended resource, for example rdma/hca.")
    count: int = resting(1, what="How many of it each such pod asks for.", ge=1, le=64)


StoreAddress = Annotated[
    str, Field(max_length=1024, pattern=r"^(s3|gs|az)://[a-z0-9][-._a-z0-9]*(/[-._/A-Za-z0-9]*)?$")
]
"""A place in an object store: bucket or container, and a prefix."""


class Storage(SpecBlock):
    """The run's volume: checkpoints, weights, logs, inputs. What is left out comes from the runtime, then from us."""

    claim_name: Name | None = fixed(
        None, what="A volume claim that exists already, shared with other runs; one of the run's own unless given."
    )
    size: Bytes | None = fixed(
        None, what="Of the run's own claim; 20Gi unless the runtime says another.", unit="bytes", ge=1 << 20, le=1 << 60
    )
    storage_class_name: Name | None = fixed(
        None, what="Storage class of the run's own claim; the cluster's default unless given."
    )
    access_mode: AccessMode | None = fixed(
        None, what="ReadWriteMany unless the runtime says another; ReadWriteOnce does where all pods share a node."
    )
    retain: Retain = hot(
        "Model",
        what="What of the run's own claim outlives the job: nothing; all but checkpoints and published versions, once "
        "the last step is trained; or all, whatever becomes of the job.",
        server_default=False,
    )
    store: StoreAddress | None = fixed(
        None, what="Where in an object store the run is copied to, each minute and at its end: s3://bucket/prefix, "
        "gs://, az://. A copy is below it, at <namespace>/<name>-<uid>; `areal pull` fetches it.",
    )  # fmt: skip
    store_secret: Name | None = fixed(
        None, what="Cluster only: the Secret with the store's options, a key each, such as AWS_ACCESS_KEY_ID and "
        "AWS_ENDPOINT_URL. Here, and without it, they are those of the environment.",
    )  # fmt: skip
    restore: StoreAddress | None = fixed(
        None, what="A run in an object store that this one goes on from, by that run's own address: its newest "
        "checkpoint, and all that it recorded.",
    )  # fmt: skip
    cache_claim_name: Name | None = resting(
        None, what="A volume claim that exists, where trainers and engines keep compiled kernels for the next pod."
    )


class Scheduling(SpecBlock):
    """Where the run's pods go."""

    priority_class_name: Name | None = resting(None, what="Priority of all pods of the run.")
    topology_key: LabelKey | None = resting(
        None, what="Trainer pods share one value of this node label, for example topology.kubernetes.io/rack."
    )
    exclusive_nodes: bool = resting(False, what="No two trainer pods on one node.")
    rdma: Rdma | None = resting(None, what="RDMA devices of trainer pods, and of servers that take weights by NCCL.")


class Cleanup(SpecBlock):
    """What becomes of the pods of a run that ended. Its volume stays."""

    when: Literal["Complete", "Failed"] = hot(what="How the run ended.")
    policy: Literal["DeletePods", "KeepPods"] = hot("DeletePods", what="Delete its pods, or leave them for a look.")
    after_seconds: int = duration(0, what="So long after the end.", ge=0)


def _cleanups() -> list[Cleanup]:
    return [
        Cleanup(when="Complete", policy="DeletePods", after_seconds=0),
        Cleanup(when="Failed", policy="DeletePods", after_seconds=3600),
    ]


class RunPolicy(SpecBlock):
    """How long the run may take, and what is left when it ended."""

    active_deadline_seconds: int | None = duration(
        None, what="The run fails when it was active for so long, counted from its last start or resumption."
    )
    startup_deadline_seconds: int = duration(
        3600, what="The run fails when no step was trained within so long, while every pod had a node."
    )
    queue_deadline_seconds: int | None = duration(
        None,
        what="The run fails when its pods waited so long for nodes, since its start or last step; never unless given.",
    )
    stall_timeout_seconds: int = duration(
        1800, what="Without a step for so long, though nodes and servers are there, the failure policy decides."
    )
    ttl_seconds_after_finished: int | None = duration(
        None, what="The job is deleted, and what storage.retain doesn't keep, so long after its end; never by default.",
        ge=0,
        le=10 * _YEAR_S,
    )  # fmt: skip
    cleanup: list[Cleanup] = hot(_cleanups, what="What becomes of the pods, by outcome.", max_length=2, list_key="when")


class OnExitCodes(SpecBlock):
    """Exit codes of a role's container: 64 config, 65 data, 70 bug, 75 infra, 137 killed."""

    operator: Literal["In", "NotIn"] = hot(what="Whether the code is one of the values, or none of them.")
    values: list[Annotated[int, Field(ge=1, le=255)]] = hot(
        what="The codes; 0 is no failure.", min_length=1, max_length=32
    )


class OnPodCondition(SpecBlock):
    """A condition that Kubernetes put on the pod, for example DisruptionTarget."""

    type: LabelKey = hot(what="The condition's type.")
    status: Literal["True", "False", "Unknown"] = hot("True", what="The condition's status.")


class FailureRule(SpecBlock):
    """One rule. It matches when all that it names does; one that names nothing matches every failure."""

    name: Name = hot(what="For the report and the status.")
    action: Literal["RestartTrainer", "RestartPod", "FailJob"] = hot(
        what="Restart the trainers from the last checkpoint, only the pod that failed, or fail the run."
    )
    count_towards_max: bool = hot(True, what="Whether the restart counts towards maxRestarts.")
    roles: list[JobRole] = hot(list, what="Roles it is for; all unless given.", max_length=12)
    on_exit_codes: OnExitCodes | None = hot(None, what="Exit codes that it is for.")
    on_pod_conditions: list[OnPodCondition] = hot(
        list, what="Pod conditions, one of which must be there.", max_length=16
    )


class FailurePolicy(SpecBlock):
    """What a failure leads to. The first rule that matches decides; else a trainer's failure restarts the trainers from
    the last checkpoint, any other role's only its pod."""

    max_restarts: int = hot(
        10,
        what="The run fails at the next counted restart. A new checkpoint starts the count anew; unless a rule says "
        "so, pods that are evicted, preempted, deleted or lost with their node don't count.",
        ge=0,
        le=10000,
    )
    restart_window_seconds: int = duration(
        86400, what="So long after the first restart that counts, the count starts anew.", ge=60
    )
    rules: list[FailureRule] = hot(list, what="Rules, in order.", max_length=32)


class ObjectKey(SpecBlock):
    """One key of a Secret or ConfigMap of the job's namespace, as in a pod."""

    name: Name = resting(what="The object's name.")
    key: str = resting(what="Which of its keys.", min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    optional: bool = resting(False, what="Whether the variable is left out where there is no such key.")


class EnvSource(SpecBlock):
    """Where a variable's value comes from; give one. `areal run` takes the variable of its own environment."""

    secret_key_ref: ObjectKey | None = resting(None, what="A Secret, which has the runtime's allow.secretLabels.")
    config_map_key_ref: ObjectKey | None = resting(None, what="A ConfigMap.")


class EnvVar(SpecBlock):
    """One environment variable of a role's container: value or valueFrom."""

    name: EnvName = resting(what="Its name.")
    value: EnvValue = resting("", what="Its value.")
    value_from: EnvSource | None = resting(None, what="Its value, from another object.")

    def in_pod(self) -> dict[str, Any]:
        """The variable as a pod has it."""
        return self.model_dump(by_alias=True, exclude_none=True, exclude={"value"} if self.value_from else None)


class Resources(SpecBlock):
    """What a role's container asks for and may use, as in a pod."""

    requests: dict[LabelKey, Amount] = resting(dict, what="What is set aside.", max_length=16)
    limits: dict[LabelKey, Amount] = resting(dict, what="The most it may use.", max_length=16)


class Toleration(SpecBlock):
    """A taint that the role's pods tolerate, as in a pod."""

    key: LabelKey | None = resting(None, what="The taint's key; all keys unless given.")
    operator: Literal["Equal", "Exists"] = resting("Equal", what="How the value is compared.")
    value: LabelValue | None = resting(None, what="The taint's value, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = resting(
        None, what="The taint's effect; all effects unless given."
    )
    toleration_seconds: int | None = resting(
        None, what="How long NoExecute is tolerated; forever unless given.", unit="seconds", ge=0, le=_YEAR_S
    )


VolumeKind = Literal["pvc", "configMap", "secret"]


class PodVolume(SpecBlock):
    """A volume of the job's namespace in the role's main container: one of pvc, configMap, secret."""

    mount_path: Mount = resting(what="Where it is mounted.")
    pvc: Name | None = resting(None, what="A volume claim.")
    config_map: Name | None = resting(None, what="A ConfigMap: a file a key.")
    secret: Name | None = resting(None, what="A Secret, which has the runtime's allow.secretLabels: a file a key.")
    read_only: bool = resting(True, what="Whether nothing is written to it; false for a pvc only.")

    def sources(self) -> dict[VolumeKind, str]:
        """What it names, by kind."""
        named: dict[VolumeKind, str | None] = {"pvc": self.pvc, "configMap": self.config_map, "secret": self.secret}
        return {kind: name for kind, name in named.items() if name is not None}


class Affinity(SpecBlock):
    """Nodes and pods to be near to or far from, as in a pod; the runtime's and scheduling's terms hold, too."""

    node_affinity: FiniteMapping = resting(dict, what="Nodes, by their labels.", max_length=2)
    pod_affinity: FiniteMapping = resting(dict, what="Pods to be near to.", max_length=2)
    pod_anti_affinity: FiniteMapping = resting(dict, what="Pods to be far from.", max_length=2)


class PodPatch(SpecBlock):
    """What this job changes in the pods of one role, above the runtime's template."""

    labels: dict[LabelKey, LabelValue] = resting(dict, what="More labels.", max_length=32)
    annotations: dict[LabelKey, AnnotationValue] = resting(dict, what="More annotations.", max_length=32)
    env: list[EnvVar] = resting(
        list, what="More environment of the main container; AREAL_… is the operator's.", max_length=64, list_key="name"
    )
    resources: Resources = resting(Resources, what="Resources of the main container.")
    node_selector: dict[LabelKey, LabelValue] = resting(dict, what="Labels that the node must have.", max_length=32)
    tolerations: list[Toleration] = resting(list, what="Taints that are tolerated.", max_length=32)
    volumes: list[PodVolume] = resting(list, what="More volumes.", max_length=16, list_key="mount_path")
    affinity: Affinity = resting(Affinity, what="More affinity.")
    topology_spread_constraints: list[Annotated[FiniteMapping, Field(max_length=16)]] = resting(
        list, what="How pods spread, as in a pod; one without labelSelector counts the role's own pods.", max_length=8
    )
    runtime_class_name: Name | None = resting(None, what="A sandbox, for example gvisor.")
    priority_class_name: Name | None = resting(None, what="Priority of the role's pods; scheduling's unless given.")

    def with_more(self, more: "PodPatch") -> "PodPatch":
        """This patch and another: keys and items of both, and of what has none the other's where it gives one."""
        both: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            own, new = getattr(self, name), getattr(more, name)
            if new != field.get_default(call_default_factory=True):
                both[name] = {**own, **new} if isinstance(own, dict) else [*own, *new] if isinstance(own, list) else new
        return self.model_copy(update=both)


class PodTemplate(SpecBlock):
    """Patches of pods, by role."""

    one_schema = True

    trainer: PodPatch = resting(PodPatch, what="Trainer pods.")
    generation: PodPatch = resting(PodPatch, what="Generation pods: agent and engine.")
    surge: PodPatch | None = resting(
        None, what="Given, a pool of its own for the servers above generation.elastic.minReplicas, on spot machines "
        "for example: what those pods have beside `generation`'s, or other than it.",
    )  # fmt: skip
    reward: PodPatch = resting(
        PodPatch,
        what="Pods of built-in verifiers; with code their memory limit is 4Gi unless given, with model they have none. "
        "Also the pod of boxes.",
    )
    reward_custom: PodPatch = resting(PodPatch, what="Pods of the recipe's `reward`.")
    controller: PodPatch = resting(PodPatch, what="The controller's pod.")
    worker: PodPatch = resting(PodPatch, what="Workers, which run the recipe's workflows.")
    gateway: PodPatch = resting(PodPatch, what="Gateways in front of workers.")
    redis: PodPatch = resting(PodPatch, what="The run's Redis.")
    tools: PodPatch = resting(PodPatch, what="Pods that prepare, upload and finish.")

    def by_role(self) -> dict[str, PodPatch]:
        """The patches by their names in the file."""
        named = {field.alias or name: getattr(self, name) for name, field in type(self).model_fields.items()}
        return {name: patch for name, patch in named.items() if patch is not None}
