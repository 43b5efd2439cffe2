"""RLRuntime and ClusterRLRuntime: what the platform's owners say about every job's pods.

Owns their fields and what follows from them and a job together. A runtime has no status and no controller: a job takes
a snapshot of its runtime when it is accepted, and later edits are for later jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from areal.spec.block import Mutability, SpecBlock, knob
from areal.spec.cluster import DEFAULT_ACCESS_MODE, DEFAULT_VOLUME_BYTES, AccessMode, RuntimeKind, VolumeKind
from areal.spec.gpu_defaults import GPU
from areal.spec.job import JobSpec, Metadata
from areal.spec.load import without_server_fields
from areal.spec.problems import refuse_invalid
from areal.spec.quantity import Bytes
from areal.spec.text import AbsolutePath, Argument, LabelKey, LabelValue, Name, WireSchema, Word
from areal.yaml_file.table import read_table

MAIN_CONTAINER = "main"
SNAPSHOT_KEY = "runtime.json"  # of the ConfigMap with a job's own copy of its runtime

_FIX = "Correct the runtime; `kubectl explain clusterrlruntime.spec` lists its fields."
_LISTS = ("containers", "initContainers", "volumes", "ephemeralContainers")


def _pod_template(template: dict[str, Any]) -> dict[str, Any]:
    """What must hold for a template to be merged: the shape that the merge relies on."""
    if strange := sorted(template.keys() - {"metadata", "spec"}):
        raise ValueError(f"a pod template has metadata and spec, not {', '.join(strange)}")
    for part in ("metadata", "spec"):
        if not isinstance(template.get(part, {}), dict):
            raise ValueError(f"{part} must be a mapping")
    spec = template.get("spec", {})
    for name in _LISTS:
        items = spec.get(name, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) and item.get("name") for item in items):
            raise ValueError(f"spec.{name} must be a list of mappings with a name")
    return template


_TEMPLATE_SCHEMA = read_table("areal.spec", "pod_template.yaml")
PodTemplateObject = Annotated[dict[str, Any], AfterValidator(_pod_template), WireSchema(_TEMPLATE_SCHEMA)]


class RoleRuntime(SpecBlock):
    """One role's pods."""

    template: PodTemplateObject = knob(
        dict, what="A pod template, merged over the one for all roles. The role's own container is called main."
    )


class RuntimeRoles(SpecBlock):
    """Pod templates by role."""

    controller: RoleRuntime = knob(RoleRuntime, what="The controller.")
    worker: RoleRuntime = knob(RoleRuntime, what="Workers, which run the recipe's workflows.")
    generation: RoleRuntime = knob(RoleRuntime, what="Generation: agent and engine.")
    trainer: RoleRuntime = knob(RoleRuntime, what="Trainers.")
    reward: RoleRuntime = knob(RoleRuntime, what="Built-in verifiers.")
    reward_custom: RoleRuntime = knob(RoleRuntime, what="The recipe's `reward`.")
    reward_model: RoleRuntime = knob(RoleRuntime, what="The verifier model: an image with PyTorch.")
    gateway: RoleRuntime = knob(RoleRuntime, what="Gateways in front of workers.")
    redis: RoleRuntime = knob(RoleRuntime, what="The run's Redis.")
    tools: RoleRuntime = knob(RoleRuntime, what="Pods that prepare, upload and finish.")


class RuntimeStorage(SpecBlock):
    """What a job's volume is made like where the job doesn't say."""

    storage_class_name: Name | None = knob(None, what="Storage class; the cluster's default unless given.")
    size: Bytes | None = knob(None, what="Size; 20Gi unless given.", unit="bytes", ge=1 << 20, le=1 << 60)
    access_mode: AccessMode | None = knob(None, what="Access mode; ReadWriteMany unless given.")


Reach = Literal["Job", "Open"]


class Egress(SpecBlock):
    """Where pods may connect to: only to their own job's (and DNS), or anywhere."""

    worker: Reach = knob("Job", what="Workers: the user's workflows run there.")
    reward_custom: Reach = knob("Job", what="The recipe's `reward` runs there.")
    generation: Reach = knob("Job", what="Agents and engines.")
    trainer: Reach = knob("Job", what="Trainers.")
    tools: Reach = knob("Open", what="Pods that prepare, upload and finish: datasets may come from a hub.")


class RuntimeNetworkPolicy(SpecBlock):
    """Who may talk to whom."""

    mode: Literal["Managed", "Unmanaged"] = knob(
        "Managed", what="The operator makes a NetworkPolicy for each role, or leaves it to you."
    )
    egress: Egress = knob(Egress, what="Where pods may connect to, by role.")


class RuntimeTls(SpecBlock):
    """How the pods of a job prove to each other who they are, and keep what they say to themselves."""

    mode: Literal["Disabled", "SelfSigned", "CertManager"] = knob(
        "Disabled",
        what="Certificates of the operator's own, one authority a job, or of cert-manager. Disabled: no encryption.",
    )
    issuer: Name = knob("areal", what="CertManager: the issuer of all certificates, one with an authority of its own.")
    issuer_kind: Literal["Issuer", "ClusterIssuer"] = knob("Issuer", what="CertManager: the issuer's kind.")


class RuntimeSandbox(SpecBlock):
    """Which RuntimeClasses give the pods of the reward service a kernel of their own: programs run there in tier T4."""

    gvisor: list[Name] = knob(lambda: ["gvisor"], what="RuntimeClasses of gVisor.", max_length=64)
    virtual_machines: list[Name] = knob(
        list,
        what="RuntimeClasses of virtual machines (Kata). Nothing inside can tell, so what is listed is believed.",
        max_length=64,
    )


class Allow(SpecBlock):
    """What a job's podTemplate may ask for. A list that isn't given allows all; a key, also all below its prefix."""

    secret_labels: dict[LabelKey, LabelValue] = knob(
        lambda: {"areal.dev/use": "env"}, what="Labels of Secrets that jobs may read.", max_length=8
    )
    volume_kinds: list[VolumeKind] | None = knob(None, what="Kinds of volumes.", max_length=3)
    mount_prefixes: list[AbsolutePath] | None = knob(None, what="Directories, below which to mount.", max_length=16)
    node_selector_keys: list[LabelKey] | None = knob(None, what="Of nodeSelector and nodeAffinity.", max_length=64)
    toleration_keys: list[LabelKey] | None = knob(None, what="Keys of taints.", max_length=64)


class Devices(SpecBlock):
    """What trainer.gpus and generation.engine.gpus count."""

    name: LabelKey = knob(GPU, what="The device plugin's resource, for example nvidia.com/mig-3g.40gb or amd.com/gpu.")
    per_pod: int | None = knob(None, what="The most of it that a node gives one pod.", ge=1, le=1024)
    device_class: Name | None = knob(
        None, what="A DeviceClass, for example gpu.nvidia.com: pods claim devices of it by dynamic resource allocation "
        "instead of asking for `name`.",
    )  # fmt: skip
    selectors: list[Argument] = knob(
        list, what="With deviceClass: CEL expressions, each of which holds for every claimed device.", max_length=8
    )


class RuntimeSpec(SpecBlock):
    """Images, pod templates and defaults of jobs."""

    description: str = knob("", what="For people who choose one.", max_length=1024)
    template: PodTemplateObject = knob(dict, what="A pod template for all roles.")
    roles: RuntimeRoles = knob(RuntimeRoles, what="Pod templates by role.")
    storage: RuntimeStorage = knob(RuntimeStorage, what="Defaults of a job's volume.")
    network_policy: RuntimeNetworkPolicy = knob(RuntimeNetworkPolicy, what="Who may talk to whom.")
    tls: RuntimeTls = knob(RuntimeTls, what="Encryption between a job's pods.")
    sandbox: RuntimeSandbox = knob(RuntimeSandbox, what="What RuntimeClasses mean to the reward service.")
    allow: Allow = knob(Allow, what="What a job's podTemplate may ask for.")
    devices: Devices = knob(Devices, what="The GPUs of trainer and generation pods.")
    pod_groups: Literal["None", "v1alpha2"] = knob(
        "None",
        what="The cluster's version of PodGroups (scheduling.k8s.io): a trainer of several pods then gets machines for "
        "all of them, or none.",
    )
    engine_image: Word | None = knob(
        None,
        what="An upstream image of SGLang, such as lmsysorg/sglang:v0.5.23: generation pods on GPUs have a container "
        "of it beside the agent's. Unless given, the agent's own image has SGLang.",
    )

    def template_of(self, role: str) -> dict[str, Any]:
        """The template of one role's pods alone, by the role's name here (rewardCustom, tools)."""
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in role).replace("-", "_")
        chosen: RoleRuntime = getattr(self.roles, name)
        return chosen.template


class Runtime(SpecBlock):
    """Images and pod templates of every role, owned by whoever runs the platform."""

    api_version: Literal["areal.dev/v1alpha1"] = knob(what="Always areal.dev/v1alpha1.")
    kind: RuntimeKind = knob(what="ClusterRLRuntime, or RLRuntime for one namespace.")
    metadata: Metadata = knob(what="The runtime's name.")
    spec: RuntimeSpec = knob(RuntimeSpec, what="What it gives to jobs.", change=Mutability.LIVE)


@dataclass(frozen=True)
class Volume:
    """The volume of one job, decided. `claim_name` is a claim that exists; None: one of the run's own."""

    claim_name: str | None
    size_bytes: int
    storage_class_name: str | None
    access_mode: str


def volume_of(job: JobSpec, runtime: RuntimeSpec) -> Volume:
    """What the job says, else the runtime, else the default."""
    asked, usual = job.storage, runtime.storage
    return Volume(
        claim_name=asked.claim_name,
        size_bytes=asked.size or usual.size or DEFAULT_VOLUME_BYTES,
        storage_class_name=asked.storage_class_name or usual.storage_class_name,
        access_mode=asked.access_mode or usual.access_mode or DEFAULT_ACCESS_MODE,
    )


def runtime_from_object(values: Mapping[str, Any]) -> Runtime:
    """A runtime as the API server or a YAML file gives it; raises ConfigError that names every wrong field."""
    cleaned = without_server_fields(values)
    metadata = cleaned.get("metadata")
    name = f"{cleaned.get('kind', 'runtime')} {metadata.get('name', '') if isinstance(metadata, dict) else ''}".strip()
    return refuse_invalid(Runtime, cleaned, {"": name}, name, fix=_FIX)
