"""Pod template of a role: defaults, the platform's runtime, the job's podTemplate, its queue's flavors, our own fields.

Owns that order and what nobody can change: who the pod is (labels, command, account), what it is told (environment) and
what it sees (/areal). A job's podTemplate reaches resources, environment, volumes, placement and labels only; a runtime
reaches everything else.
"""

import hashlib
import json
from itertools import product
from pathlib import PurePosixPath

from areal.admit.pod_rules import kernel_of
from areal.errors import ConfigError
from areal.net.server import ENV_HEALTH_SHIFT
from areal.plan import cluster_names as names
from areal.plan.cluster_names import Role
from areal.plan.role_specs import ROLE_SPECS, spec_of
from areal.spec.cluster import DEFAULT_ACCESS_MODE
from areal.spec.runtime import volume_of
from areal.spec.serving import SglangEngine
from areal.tls import ENV_TLS_DIR

from areal_operator.kube.restricted import container_security, pod_security
from areal_operator.operator.children import mounts, needs
from areal_operator.operator.children.merge import merge, refuse_annotations, refuse_env, refuse_labels, refuse_template
from areal_operator.operator.children.needs import fitted
from areal_operator.operator.children.wanted import JobBlueprint, Json

LOST_NODE_S = 30  # Kubernetes' default of 300 s leaves a job idle for five minutes when a node dies
_HOST = "kubernetes.io/hostname"
_REQUIRED, _PREFERRED = (f"{strength}DuringSchedulingIgnoredDuringExecution" for strength in ("required", "preferred"))
_TOPOLOGY_WEIGHT = 100
_FIRST = ("name", "image", "imagePullPolicy", "command", "env", "ports", "resources")
_GRACE = "terminationGracePeriodSeconds"
_PRIVATE_PORTS = frozenset({"engine"})  # on loopback
_KEYS = {"env": "name", "volumeMounts": "mountPath"}
_AGENT = {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "1Gi"}  # requests of an agent beside its engine's container
_SERVES = "trap 'exit 0' TERM; until [ -f $0 ]; do sleep 0.2; done; exec python3 -I -S -u $0 --serve $1"


def pod_template(w: JobBlueprint, role: Role) -> Json:
    """The template of a role's pods.

    Raises ConfigError when the job or the runtime sets what is the operator's, or when nobody names an image.
    """
    key = spec_of(role).template_key
    everybody = _of_platform(w.runtime.template, "the runtime's spec.template")
    own = _of_platform(w.runtime.template_of(key), f"the runtime's spec.roles.{key}.template")
    for beside in w.hosted(role)[1:]:
        own = merge(own, _image_of(w.runtime.template_of(spec_of(beside).template_key)))
    default = _default(w, role, _containers(everybody, own))
    merged = merge(default, everybody, own)
    needs.refuse_idle_gpus(role, w.job, main_container(merged).get("resources") or {}, w.runtime.devices.name)
    merged = merge(merged, _job_patch(w, role, merged["spec"].get("affinity") or {}), where=w.patch(role)[0])
    merged = merge(merged, {"spec": w.placement.get(role, {})})
    return _hashed(_claimed(merged, w, role, default))


def main_container(template: Json) -> Json:
    """The container that runs the role."""
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == names.MAIN_CONTAINER)
    return found


def _image_of(template: Json) -> Json:
    """Of a runtime's template the main container's image alone: those of engines have a trainer, too."""
    for container in (template.get("spec") or {}).get("containers") or ():
        if container.get("name") == names.MAIN_CONTAINER:
            image = {name: container[name] for name in ("name", "image", "imagePullPolicy") if name in container}
            return {"spec": {"containers": [image]}}
    return {}


def _of_platform(template: Json, where: str) -> Json:
    """A runtime's template. Raises ConfigError when it is malformed or sets what is the operator's."""
    refuse_template(merge({}, template, where=where), where)
    return template  # with its nulls, which remove defaults


def _containers(*templates: Json) -> dict[str, list[str]]:
    """The names of containers that the templates add, by list."""
    found: dict[str, list[str]] = {"containers": [names.MAIN_CONTAINER], "initContainers": []}
    for template in templates:
        spec = template.get("spec") or {}
        for kind, listed in found.items():
            listed += [c["name"] for c in spec.get(kind) or () if c["name"] not in listed]
    return found


def _default(w: JobBlueprint, role: Role, containers: dict[str, list[str]]) -> Json:
    """Pod template before any patch. Containers of the platform start as confined as our own."""
    need = needs.needs_of(role, w.job)
    volumes: list[Json] = [{"name": "tmp", "emptyDir": dict(need.scratch)}]
    places: list[Json] = [{"name": "tmp", "mountPath": str(names.SCRATCH_DIR)}]
    if spec_of(role).holds_model:
        # a container's own has 64 MiB, too little for NCCL; the kubelet bounds this by the memory limit
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        places.append({"name": "shm", "mountPath": str(names.SHARED_MEMORY_DIR)})
    if need.toolchains:
        volumes.append({"name": "toolchains", "emptyDir": dict(need.toolchains)})
        places.append({"name": "toolchains", "mountPath": str(names.TOOLCHAINS_DIR)})
    spec: Json = {
        kind: [{"name": name, "securityContext": container_security()} for name in listed]
        for kind, listed in containers.items()
        if listed
    }
    main = {
        "name": names.MAIN_CONTAINER,
        "env": [{"name": "HOME", "value": str(names.SCRATCH_DIR)}],  # libraries keep caches there
        "resources": needs.resources(role, w.job),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # of a role that died before it could say why
        "volumeMounts": places,
        **needs.probes(role, beside=len(w.hosted(role)) > 1, encrypted=w.encrypted),
    }
    rest = {
        "securityContext": pod_security(),
        _GRACE: need.grace_s,
        "tolerations": tolerations(),
        "containers": [main],
        "volumes": volumes,
    }
    annotations = {"kubectl.kubernetes.io/default-container": names.MAIN_CONTAINER}
    return merge({"metadata": {"annotations": annotations}, "spec": spec}, {"spec": rest})


def _job_patch(w: JobBlueprint, role: Role, affinity: Json) -> Json:
    """The job's `podTemplate` of a role as a patch: known fields only, and an affinity that adds to the platform's."""
    field, patch = w.patch(role)
    refuse_labels(patch.labels, f"{field}.labels")
    refuse_annotations(patch.annotations, f"{field}.annotations")
    refuse_env((variable.name for variable in patch.env), f"{field}.env")
    # Kubernetes wants extended resources as limits, and requests equal to them
    devices, claims = needs.devices(role, w.job, w.runtime.devices.name), needs.claimed(role, w.job, w.runtime.devices)
    if claims:
        del devices[w.runtime.devices.name]
    resources = {"requests": {**devices, **patch.resources.requests}, "limits": {**devices, **patch.resources.limits}}
    counted = {"labelSelector": {"matchLabels": names.selector(w.name, role)}}
    main = {
        "name": names.MAIN_CONTAINER,
        "env": [variable.in_pod() for variable in patch.env],
        "resources": {name: amounts for name, amounts in resources.items() if amounts}
        | ({"claims": [{"name": needs.CLAIM}]} if claims else {}),
    }
    spec: Json = {
        "containers": [main],
        "resourceClaims": claims
        and [{"name": needs.CLAIM, "resourceClaimTemplateName": f"{names.workload(w.name, role)}-{claims}"}],
        "nodeSelector": dict(patch.node_selector),
        "tolerations": [toleration.model_dump(by_alias=True, exclude_none=True) for toleration in patch.tolerations],
        "affinity": _added(affinity, patch.affinity.model_dump(by_alias=True, exclude_defaults=True), field),
        "topologySpreadConstraints": [{**counted, **one} for one in patch.topology_spread_constraints],
        "runtimeClassName": patch.runtime_class_name or {},
        "priorityClassName": patch.priority_class_name or w.job.spec.scheduling.priority_class_name or {},
    }
    marks = {names.LABEL_CLAIMED_GPUS: str(claims)} if claims else {}
    metadata = {"labels": {**patch.labels, **marks}, "annotations": dict(patch.annotations)}
    return {
        "metadata": {name: values for name, values in metadata.items() if values},
        "spec": {name: value for name, value in spec.items() if value},
    }


def _added(platform: Json, own: Json, field: str) -> Json:
    """The job's affinity with the platform's about nodes: required terms are alternatives, so they become pairs."""
    theirs, nodes = platform.get("nodeAffinity") or {}, own.get("nodeAffinity")
    if not theirs or not nodes:
        return own
    merged, parts = {**theirs, **nodes}, ("matchExpressions", "matchFields")
    try:
        wanted = [of.get(_REQUIRED, {}).get("nodeSelectorTerms", [{}]) for of in (theirs, nodes)]
        pairs = [{part: [*one.get(part, ()), *two.get(part, ())] for part in parts} for one, two in product(*wanted)]
    except (AttributeError, TypeError):
        place = f"{field}.affinity.nodeAffinity"
        raise ConfigError(f"{place} or the runtime's is none", fix="Write it as `kubectl explain` has it.") from None
    if _REQUIRED in merged:
        terms = [{part: found for part, found in pair.items() if found} for pair in pairs]
        merged[_REQUIRED] = {"nodeSelectorTerms": terms}
    if _PREFERRED in merged:
        merged[_PREFERRED] = [*theirs.get(_PREFERRED, ()), *nodes.get(_PREFERRED, ())]
    return {**own, "nodeAffinity": merged}


def _claimed(template: Json, w: JobBlueprint, role: Role, default: Json) -> Json:
    """The template with everything that is the operator's, whatever stood there."""
    spec = place(template["spec"], w, role)
    main = main_container(template)
    if not main.get("image"):
        key = spec_of(role).template_key
        raise ConfigError(
            f"the runtime names no image for {role}",
            fix=f"Set image of the container main in the runtime's spec.roles.{key}.template, or in spec.template.",
        )
    own = _our_container(main, w, role, default, spec.get("runtimeClassName"))
    lists = {
        kind: [_tidy(own if c["name"] == names.MAIN_CONTAINER else c) for c in spec[kind]]
        for kind in ("containers", "initContainers")
        if spec.get(kind)
    }
    engines: list[Json] = []
    if has_engine_container(w, role):
        lists["containers"] = _beside_engine(lists["containers"], str(w.runtime.engine_image))
        engines = [{"name": names.ENGINE_CONTAINER, "emptyDir": {"sizeLimit": "64Mi"}}]
    spec = {
        **{name: value for name, value in spec.items() if name not in ("hostname", "subdomain", "nodeName")},
        **lists,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always" if spec_of(role).runs_on else "Never",
        "serviceAccountName": names.service_account(w.name),
        _GRACE: _grace_s(spec.get(_GRACE), default["spec"][_GRACE]),
        "volumes": _replaced(spec.get("volumes") or [], [*mounts.volumes(w, role), *engines], "name"),
    }
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), **names.role_labels(w.name, role)}
    return {"metadata": {**metadata, "labels": labels}, "spec": spec}


def has_engine_container(w: JobBlueprint, role: Role) -> bool:
    """Whether the engine of a role's pods has a container of its own, of the runtime's upstream image."""
    engine, shared = w.job.spec.generation.engine, w.job.spec.shared_cards
    on_gpus = role is Role.GENERATION and isinstance(engine, SglangEngine) and engine.gpus > 0 and not shared
    return on_gpus and w.runtime.engine_image is not None


def _beside_engine(containers: list[Json], image: str) -> list[Json]:
    """The containers of a generation pod with the engine's: it has the agent's mounts, variables, memory and all GPUs.

    It waits for the agent's keeper and serves it; what the platform's template says of `engine` stays.
    """
    place = str(names.ENGINE_DIR)
    agent = next(one for one in containers if one["name"] == names.MAIN_CONTAINER)
    given = next((one for one in containers if one["name"] == names.ENGINE_CONTAINER), {})
    mount = {"name": names.ENGINE_CONTAINER, "mountPath": place}
    agent = {**agent, "volumeMounts": [*agent["volumeMounts"], mount]}
    both = {
        "env": [*agent["env"], {"name": "USER", "value": "areal"}],  # libraries ask for a name, which 65532 has none of
        "volumeMounts": agent["volumeMounts"],
    }
    engine = {
        "securityContext": container_security(),
        "resources": agent["resources"],
        **given,
        "name": names.ENGINE_CONTAINER,
        "image": image,
        "command": ["sh", "-c", _SERVES, f"{place}/keeper.py", f"{place}/keeper.sock"],
        **{field: _replaced(ours, given.get(field) or [], _KEYS[field]) for field, ours in both.items()},
    }
    limits = {name: most for name, most in (agent["resources"].get("limits") or {}).items() if name in _AGENT}
    needs = fitted({"requests": _AGENT, **({"limits": limits} if limits else {})}, {"requests": _AGENT})
    agent["env"] = [{"name": names.ENV_ENGINE_PLACE, "value": place}, *agent["env"]]
    agent["resources"] = needs
    others = [one for one in containers if one["name"] not in (names.MAIN_CONTAINER, names.ENGINE_CONTAINER)]
    return [agent, *others, _tidy(engine)]


def _grace_s(given: object, needed: int) -> int:
    """At least what draining takes: a platform may give more time, never less."""
    return max(given, needed) if isinstance(given, int) else needed


def _our_container(main: Json, w: JobBlueprint, role: Role, default: Json, runtime_class: str | None) -> Json:
    kept = [mount for mount in main.get("volumeMounts") or [] if not _is_ours(mount["mountPath"], w, role)]
    ours = [*_environment(role), *_certificates(w, role)]
    if role in (Role.REWARD, Role.BOXES) and kernel_of(runtime_class, w.runtime.sandbox) == "kata":
        ours.append({"name": names.ENV_SANDBOX_KERNEL, "value": "kata"})
    storage = w.job.spec.storage
    if role is Role.FINISH and storage.retain == "Model" and storage.claim_name is None:
        ours.append({"name": names.ENV_CLEAN, "value": "1"})
    if mounts.has_hub_token(w, role):  # for huggingface_hub, in the one pod that downloads a private model
        ours.append({"name": "HF_TOKEN_PATH", "value": str(names.ACCESS_DIR / names.HUB_TOKEN_KEY)})
    known = {variable["name"] for variable in ours}
    container = {
        **{name: value for name, value in main.items() if name != "args"},
        "command": spec_of(role).command,
        "env": [*ours, *(variable for variable in main.get("env") or [] if variable["name"] not in known)],
        "resources": fitted(main.get("resources") or {}, main_container(default)["resources"]),
        "volumeMounts": [*kept, *mounts.mounts(w, role)],
    }
    ports = [*_ports(w, role)]
    taken = {port["containerPort"] for port in ports}
    ports += [port for port in main.get("ports") or [] if port["containerPort"] not in taken]
    return {**container, "ports": ports} if ports else container


def _tidy(container: Json) -> Json:
    """The container with what identifies it first, and a protocol at every port: server-side apply merges by both."""
    ports = [{**port, "protocol": port.get("protocol") or "TCP"} for port in container.get("ports") or []]
    first = {name: container[name] for name in _FIRST if name in container}
    return {**first, **container, **({"ports": ports} if ports else {})}


def _is_ours(path: str, w: JobBlueprint, role: Role) -> bool:
    return PurePosixPath(path).is_relative_to(mounts.OWNED_ROOT) or path in {
        mount["mountPath"] for mount in mounts.mounts(w, role)
    }


def _environment(role: Role) -> list[Json]:
    """Who the pod is. Pods of a Deployment or a Job have no index."""
    index: Json = {"name": names.ENV_INDEX, "value": "0"}
    if spec_of(role).workload == "StatefulSet":
        index = {
            "name": names.ENV_INDEX,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.LABEL_POD_INDEX}']"}},
        }
    fields = ((names.ENV_POD_IP, "status.podIP"), (names.ENV_POD_NAME, "metadata.name"))
    return [index, *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields)]


def _certificates(w: JobBlueprint, role: Role) -> list[Json]:
    """Where the pod's certificate is, and the name that is in it, under which others dial its servers."""
    if not w.encrypted or role not in w.roles:
        return []
    found = {ENV_TLS_DIR: str(names.TLS_DIR), ENV_HEALTH_SHIFT: str(needs.HEALTH_SHIFT)}
    if spec_of(role).headless:
        found[names.ENV_ADDRESS] = f"$({names.ENV_POD_NAME}).{names.service_host(w.name, w.namespace, role)}"
    return [{"name": name, "value": value} for name, value in found.items()]


def _ports(w: JobBlueprint, role: Role) -> list[Json]:
    row = spec_of(role)
    named = {name: port for name, port in row.pod_ports.items() if name not in _PRIVATE_PORTS}
    if row.supervised:
        named["launcher"] = names.LAUNCHER_PORT
    for index in range(w.job.spec.generation.replicas) if len(w.hosted(role)) > 1 else ():
        served = names.ports_beside_trainer(index)
        named |= {f"{name}-{index}": port for name, port in served.items() if name not in _PRIVATE_PORTS}
    return [{"name": names.port_word(name), "containerPort": port, "protocol": "TCP"} for name, port in named.items()]


def _replaced(theirs: list[Json], ours: list[Json], key: str) -> list[Json]:
    known = {item[key] for item in ours}
    return [*(item for item in theirs if item[key] not in known), *ours]


def _hashed(template: Json) -> Json:
    """The template with its own hash, so that pods which were made from another one can be told."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    annotations = {**(template["metadata"].get("annotations") or {}), names.ANNOTATION_HASH: digest}
    return {**template, "metadata": {**template["metadata"], "annotations": annotations}}


def tolerations() -> list[Json]:
    """Tolerations of a node that nobody hears of: seconds that a pod stays there."""
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_S,
        }
        for state in ("not-ready", "unreachable")
    ]


def place(spec: Json, w: JobBlueprint, role: Role) -> Json:
    """The pod's spec with what the job's volume and, for gangs, its `scheduling` add to the affinity it has already."""
    scheduling = w.job.spec.scheduling
    affinity = dict(spec.get("affinity") or {})
    if _on_one_node(w) and role in _with_volume(w):
        mates = {
            "matchLabels": {names.LABEL_JOB: w.name},
            "matchExpressions": [
                {"key": names.LABEL_ROLE, "operator": "In", "values": sorted(map(str, _with_volume(w)))}
            ],
        }
        beside: Json = {"labelSelector": mates, "topologyKey": _HOST}
        affinity["podAffinity"] = _with(affinity.get("podAffinity"), _REQUIRED, beside)
    if not spec_of(role).gang:
        return {**spec, "affinity": affinity} if affinity else spec
    if scheduling.exclusive_nodes:  # anti-affinity is symmetric: what comes later stays away, too
        heavy_roles = [f"{one}" for one, row in ROLE_SPECS.items() if row.holds_model]
        heavy = {"key": names.LABEL_ROLE, "operator": "In", "values": heavy_roles}
        term: Json = {"labelSelector": {"matchExpressions": [heavy]}, "namespaceSelector": {}, "topologyKey": _HOST}
        affinity["podAntiAffinity"] = _with(affinity.get("podAntiAffinity"), _REQUIRED, term)
    if scheduling.topology_key:
        mates = {"matchLabels": {names.LABEL_JOB: w.name, names.LABEL_ROLE: f"{role}"}}
        near: Json = {
            "weight": _TOPOLOGY_WEIGHT,
            "podAffinityTerm": {"labelSelector": mates, "topologyKey": scheduling.topology_key},
        }
        affinity["podAffinity"] = _with(affinity.get("podAffinity"), _PREFERRED, near)
    return {**spec, "affinity": affinity} if affinity else spec


def _on_one_node(w: JobBlueprint) -> bool:
    """Whether a single node mounts the run's volume. A claim of the user's own is of a mode unknown here."""
    volume = volume_of(w.job.spec, w.runtime)
    return volume.claim_name is None and volume.access_mode != DEFAULT_ACCESS_MODE


def _with_volume(w: JobBlueprint) -> list[Role]:
    """Roles whose pods mount the run's volume, which a scheduler would else put where it can't be attached."""
    return [role for role, row in ROLE_SPECS.items() if row.run_parts and mounts.reaches_volumes(w, role)]


def _with(affinity: Json | None, rule: str, term: Json) -> Json:
    kept = dict(affinity or {})
    return {**kept, rule: [*(kept.get(rule) or []), term]}
