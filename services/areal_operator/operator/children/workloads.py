"""StatefulSets, Deployments and Jobs around the pods of the roles, with their Services and disruption budgets.

StatefulSets whose pods are dialled one by one have a headless Service that shows pods before they are ready: a gang
resolves its first member while none of it is. What is dialled as a whole has an address that outlives its pod.
"""

import copy

from areal.plan.cluster_names import SURGE_FROM, Role, front, port_word, selector, surge, workload
from areal.plan.role_specs import spec_of

from areal_operator.kube.resources import CLAIM_TEMPLATES, POD_GROUPS
from areal_operator.operator.children import mounts, needs
from areal_operator.operator.children.pods import main_container, pod_template
from areal_operator.operator.children.wanted import JobBlueprint, Json, child

_HISTORY = 2  # revisions kept: nobody rolls a job back
_RUN_DIR = "run-dir"
_TRIES = 5
_USERS_FAULT = [64, 65, 70]  # config, data, bug: another try ends the same way


def workloads(w: JobBlueprint) -> list[Json]:
    """Everything that makes pods of the long-running roles, and their Services and budgets."""
    counts, more = w.pools()
    made = [_workload(w, role, counts[role]) for role in w.roles]
    if more is not None:
        made.append(_surge(more))
    awake = int(any(w.replicas.values()))
    beside = (_workload(w, role, awake) for role in w.beside)
    return [*services(w), *budgets(w), *device_claims(w), *pod_groups(w), *made, *beside]


def prepare_job(w: JobBlueprint) -> Json:
    """The Job that looks at every source and fills the run directory. To be created once: a Job's pods never change.

    Its first container makes that directory as the user of all pods: the kubelet would make it as root, with the mode
    of the volume's root, and nobody could write there.
    """
    template = pod_template(w, Role.PREPARE)
    spec = template["spec"]
    main = main_container(template)
    below = mounts.run_directory(w)
    same = ("image", "imagePullPolicy", "resources", "securityContext")
    maker: Json = {
        "name": _RUN_DIR,
        "command": ["mkdir", "-p", "-m", "2775", str(below.parent), str(below)],
        **copy.deepcopy({name: main[name] for name in same if name in main}),
        "volumeMounts": [mounts.root_mount()],
    }
    spec = {**spec, "initContainers": [maker, *(spec.get("initContainers") or [])]}
    deadline_s = w.job.spec.run_policy.startup_deadline_seconds
    return _batch(w, Role.PREPARE, {**template, "spec": spec}, deadline_s)


def finish_job(w: JobBlueprint) -> Json:
    """The Job that audits the run and writes its report. To be created once, too."""
    return _batch(w, Role.FINISH, pod_template(w, Role.FINISH), None)


def _workload(w: JobBlueprint, role: Role, replicas: int) -> Json:
    spec: Json = {
        "replicas": replicas,
        "revisionHistoryLimit": _HISTORY,
        "selector": {"matchLabels": selector(w.name, role)},
        "template": pod_template(w, role),
    }
    for group in pod_groups(w) if role is Role.TRAINER else ():
        spec["template"]["spec"]["schedulingGroup"] = {"podGroupName": group["metadata"]["name"]}
    name = workload(w.name, role)
    row = spec_of(role)
    if row.workload == "Deployment":
        if row.recreate:
            spec["strategy"] = {"type": "Recreate"}
        return child(w, "apps/v1", "Deployment", name, role=role, spec=spec)
    spec |= {
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete" if row.holds_model else "RollingUpdate"},
    }
    return child(w, "apps/v1", "StatefulSet", name, role=role, spec=spec)


def _surge(w: JobBlueprint) -> Json:
    """The set of surge servers, behind the fleet's Service. Its ordinals are none that the first set may have,
    so that no two servers ever have one name, however the bounds change."""
    made = _workload(w, Role.GENERATION, w.replicas[Role.GENERATION])
    made["metadata"]["name"] = surge(w.name)
    made["spec"]["ordinals"] = {"start": SURGE_FROM}
    return made


def _batch(w: JobBlueprint, role: Role, template: Json, deadline_s: int | None) -> Json:
    rules: list[Json] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": _USERS_FAULT}},
    ]
    spec: Json = {
        "backoffLimit": _TRIES,
        "completions": 1,
        "parallelism": 1,
        "podFailurePolicy": {"rules": rules},
        "podReplacementPolicy": "Failed",  # never two at once on one directory
        "template": template,
    }
    if deadline_s is not None:
        spec["activeDeadlineSeconds"] = deadline_s
    return child(w, "batch/v1", "Job", workload(w.name, role), role=role, spec=spec)


_NOT_SERVED = ("metrics", "engine")  # scraped pod by pod; on loopback


def services(w: JobBlueprint) -> list[Json]:
    """One Service a role, and one more where pods that are dialled one by one have an address together."""
    fronts = [_front(w, role) for role in w.roles if spec_of(role).front]
    return [*(_service(w, role) for role in (*w.roles, *w.beside)), *fronts]


def budgets(w: JobBlueprint) -> list[Json]:
    """Disruption budgets of the roles whose pods must not be evicted at once."""
    return [
        child(w, "policy/v1", "PodDisruptionBudget", workload(w.name, role), role=role, spec=_budget(w, role))
        for role in reversed(w.roles)
        if spec_of(role).max_unavailable is not None
    ]


def device_claims(w: JobBlueprint) -> list[Json]:
    """Templates of the claims by which pods get GPUs of a device class, a role's by number: templates can't change."""
    given, made = w.runtime.devices, []
    for role in w.roles:
        if count := needs.claimed(role, w.job, given):
            wanted: Json = {"deviceClassName": given.device_class, "count": count}
            wanted["selectors"] = [{"cel": {"expression": expression}} for expression in given.selectors]
            claim = {"devices": {"requests": [{"name": needs.CLAIM, "exactly": wanted}]}}
            kind, name = (CLAIM_TEMPLATES.api_version, CLAIM_TEMPLATES.kind), f"{workload(w.name, role)}-{count}"
            made.append(child(w, *kind, name, role=role, spec={"spec": claim}))
    return made


def pod_groups(w: JobBlueprint) -> list[Json]:
    """The group of a trainer of several pods: the scheduler binds all of them or none, so that two jobs that don't fit
    together never wait for each other with half their machines. A group can't change: another size has another name."""
    count = w.replicas.get(Role.TRAINER, 0)
    if w.runtime.pod_groups == "None" or count < 2:
        return []
    policy = {"schedulingPolicy": {"gang": {"minCount": count}}}
    name = f"{workload(w.name, Role.TRAINER)}-{count}"
    return [child(w, POD_GROUPS.api_version, POD_GROUPS.kind, name, role=Role.TRAINER, spec=policy)]


def _budget(w: JobBlueprint, role: Role) -> Json:
    row = spec_of(role)
    budget: Json = {"maxUnavailable": row.max_unavailable}
    if row.evict_unready:
        budget["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    return {**budget, "selector": {"matchLabels": selector(w.name, role)}}


def _service(w: JobBlueprint, role: Role) -> Json:
    row = spec_of(role)
    spec: Json = {
        "selector": selector(w.name, role),
        "ports": [_port(name, number) for name, number in row.pod_ports.items() if name not in _NOT_SERVED],
        "type": "ClusterIP",
    }
    if row.headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return child(w, "v1", "Service", workload(w.name, role), role=role, spec=spec)


def _front(w: JobBlueprint, role: Role) -> Json:
    row = spec_of(role)
    spec: Json = {
        "selector": selector(w.name, role),
        "ports": [_port(name, row.pod_ports[name]) for name in row.front],
        "type": "ClusterIP",
    }
    return child(w, "v1", "Service", front(w.name, role), role=role, spec=spec)


def _port(name: str, number: int) -> Json:
    grpc: Json = {"appProtocol": "grpc"} if name == "grpc" else {}
    return {"name": port_word(name), "port": number, **grpc, "protocol": "TCP", "targetPort": number}
