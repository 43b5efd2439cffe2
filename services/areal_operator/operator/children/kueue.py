"""Request of a job to a Kueue queue: the Workload, whose pod sets are the job's roles.

Owns which roles are counted together. What has few pods and no accelerator is the set `core`: one pod with all of its
containers, because a Workload has at most eight sets. Pure.
"""

from areal.plan.cluster_names import Role

from areal_operator.operator.children.pods import pod_template
from areal_operator.operator.children.wanted import SURGE, JobBlueprint, Json, child

CORE = "core"
_SETS = frozenset({Role.TRAINER, Role.GENERATION, Role.WORKER, Role.REWARD, Role.REWARD_MODEL})
_COUNTED = ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "overhead")  # beside resources


def pod_set(role: Role) -> str:
    """The pod set that a role's pods are counted in; the Jobs before and after the run take the place of the core."""
    return role.value if role in _SETS else CORE


def quota_request(w: JobBlueprint, queue: str, priority: Json) -> Json:
    """The Workload of a job. `priority` has the spec's `priority` and `priorityClassRef`, or is empty.

    Servers are the one set that may be admitted in part: Kueue allows one, and a run works with fewer of them. Of a
    fleet with surge servers those are.
    """
    own, surge = w.pools()
    counts = {**{role: own[role] for role in w.roles}, **dict.fromkeys(w.beside, 1)}
    more = surge.replicas[Role.GENERATION] if surge is not None else 0
    sets: list[Json] = []
    core: list[tuple[Role, int]] = []
    for role, count in counts.items():
        if pod_set(role) == CORE:
            core.append((role, count))
        elif count:
            least = {"minCount": 1} if role is Role.GENERATION and count > 1 and not more else {}
            sets.append({"name": pod_set(role), "count": count, **least, "template": {"spec": _pod(w, role)}})
    if surge is not None and more:
        sets.append({"name": SURGE, "count": more, "minCount": 1, "template": {"spec": _pod(surge, Role.GENERATION)}})
    containers = [
        {**container, "name": f"{role}-{index}-{container['name']}"}
        for role, count in core
        for index in range(count)
        for container in _pod(w, role)["containers"]
    ]
    first = {"name": CORE, "count": 1, "template": {"spec": {**_pod(w, core[0][0]), "containers": containers}}}
    return child(
        w,
        "kueue.x-k8s.io/v1beta2",
        "Workload",
        w.name,
        spec={"queueName": queue, **priority, "podSets": [first, *sets]},
    )


def _pod(w: JobBlueprint, role: Role) -> Json:
    """What counts of a role's pod: its containers' resources, and where it may run."""
    spec = pod_template(w, role)["spec"]
    kinds = {
        kind: [{"name": c["name"], "resources": c.get("resources") or {}} for c in spec[kind]]
        for kind in ("containers", "initContainers")
        if spec.get(kind)
    }
    return {**kinds, "restartPolicy": "Never", **{name: spec[name] for name in _COUNTED if spec.get(name)}}
