"""Observation of one job: caches, the job's Secret, its recipe, its roles' reports, dry runs of its objects.

Owns the look-ups and which job a pod belongs to. Changes nothing on the server.
"""

import base64
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from areal.admit.pod_rules import refusal_of_secret, secrets_of
from areal.errors import ConfigError
from areal.plan.callers import Outsider
from areal.plan.cluster_names import (
    LABEL_JOB,
    TOKEN_KEY,
    Role,
    access_secret,
    runtime_config_map,
    surge,
    token_key,
    workload,
)
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import spec_of
from areal.spec.job import RLJob
from areal.spec.quantity import amount
from areal.spec.runtime import RuntimeSpec, runtime_from_object
from areal.spec.status import AcceptedReason, ConditionType

from areal_operator.kube import resources
from areal_operator.kube.errors import AlreadyExistsError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from areal_operator.operator import observed, quota
from areal_operator.operator.admission import JobRefusal, Material, RunnableJob, admit, parse, words_of
from areal_operator.operator.children import JobBlueprint, read_snapshot
from areal_operator.operator.children.files import mounted_by, resolved_text
from areal_operator.operator.children.tls import tls_secret
from areal_operator.operator.job_state import JobState, Rest, state_in
from areal_operator.operator.refusals import refusal_of_pods
from areal_operator.operator.sharing import shared
from areal_operator.operator.times import PODS_LATE_S, RETRY_PODS_S
from areal_operator.operator.together import together
from areal_operator.operator.world import Notes, OperatorWorld
from areal_operator.runtime.api import MANAGER

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_SECRET_AGE_S = 600.0  # A Secret that somebody deleted is missed within this time; pods that run have read it already


async def observe(job: resources.Json, world: OperatorWorld) -> observed.Observation:
    """The job as it is now. `job` is its object, from the cache."""
    key, state = resources.key_of(job), state_in(job.get("status", {}))
    uid = job["metadata"]["uid"]
    admitted, refusal = None, None
    found = await _admission(job, state, world)
    if isinstance(found, JobRefusal):
        refusal = found
    else:
        admitted = found
        if state.outcome is None:
            refusal = await _try(job, admitted, state, world)
    queue = _queue(job, world)
    if queue is not None and admitted is not None:
        admitted = await _granted(admitted, queue, world.notes(key, uid), world)
    if admitted is not None:
        admitted = _sized(admitted, state.servers, world.notes(key, uid), queued=queue is not None)
    pods = tuple(_pods(job, key, world))
    made = tuple(read for obj in _sets(uid, world) if (read := observed.read_workload(obj)) is not None)
    workloads = tuple(one for one in made if not spec_of(one.role).beside)
    departed = world.deleted_pods.of(key)
    return observed.Observation(
        key=key,
        raw=job,
        state=state,
        admitted=admitted,
        refusal=refusal,
        pods=pods,
        workloads=workloads,
        beside=tuple(one for one in made if spec_of(one.role).beside),
        prepare=observed.read_batch(_own(world, key, uid, Role.PREPARE)),
        finish=observed.read_batch(_own(world, key, uid, Role.FINISH)),
        departed=departed,
        refused=await _refused_pods(job, state, workloads, world),
        nodes=_nodes((*pods, *departed.values()), world),
        reports=world.reports.latest(key),
        queue=queue,
        uncertified=await _uncertified(key, admitted, pods, world.notes(key, uid), world),
    )


def wanted(seen: observed.Observation, world: OperatorWorld, replicas: dict[str, int] | None = None) -> JobBlueprint:
    """Blueprint for the builders of children."""
    assert seen.admitted is not None
    return wanted_of(seen.raw, seen.admitted, world, replicas)


def wanted_of(
    job: resources.Json, admitted: RunnableJob, world: OperatorWorld, replicas: dict[str, int] | None = None
) -> JobBlueprint:
    """The same, before all is gathered. Without `replicas`, as many pods as the spec asks for."""
    key, uid = resources.key_of(job), job["metadata"]["uid"]
    return JobBlueprint(
        job=admitted.job,
        raw=job,
        runtime=admitted.runtime,
        resolved=admitted.resolved,
        replicas=replicas if replicas is not None else {role.value: n for role, n in admitted.replicas.items()},
        operator_namespace=world.settings.operator_namespace,
        secrets=world.notes(key, uid).secret,
        metrics_from=world.settings.metrics_from,
        placement=admitted.placement,
        files=mounted_by(_sets(uid, world)),
        redis_bytes=_claimed_bytes(world, key),
    )


async def access(key: resources.Key, uid: str, world: OperatorWorld) -> str | None:
    """The operator's token of a job; None while there is no Secret."""
    notes = world.notes(key, uid)
    if notes.secret is None or world.now() - notes.secret_at > _SECRET_AGE_S:
        found = await world.api.get(resources.SECRETS, key[0], access_secret(key[1]))
        if found is None or not remember_access(found, uid, notes, world.now()):
            return None
    known = notes.secret or {}
    return known.get(token_key(Outsider.OPERATOR)) or known.get(TOKEN_KEY)


def remember_access(secret: resources.Json, uid: str, notes: Notes, now: float) -> bool:
    """Keep what the job's Secret says; False when it is an earlier job's."""
    if observed.owner_of(secret).get("uid") != uid:
        return False
    notes.secret = {name: base64.b64decode(text).decode() for name, text in secret.get("data", {}).items()}
    notes.secret_at = now
    return True


# Admission


async def _admission(job: resources.Json, state: JobState, world: OperatorWorld) -> RunnableJob | JobRefusal:
    """Whether the job may run; looked up again only when the job, its runtime or its recipe changed."""
    key, metadata = resources.key_of(job), job["metadata"]
    notes = world.notes(key, metadata["uid"])
    runtime = _runtime(job, world)
    version = (
        "" if runtime is None else f"{runtime['metadata'].get('uid')}/{runtime['metadata'].get('resourceVersion')}"
    )
    about = (metadata.get("generation"), version, notes.recipe)
    if about in notes.admitted:
        return notes.admitted[about]
    parsed = parse(job, running=state.prepared)
    if isinstance(parsed, JobRefusal):
        found: RunnableJob | JobRefusal = parsed
    else:
        parsed = shared(parsed, world.blocks)
        recipe = await _recipe(job, parsed, state, world)
        spec, problem = _runtime_spec(runtime, job, world)
        found = admit(job, parsed, Material(spec, problem, recipe))
        if isinstance(found, RunnableJob):
            found = replace(found, runtime=world.runtimes.setdefault(found.runtime_hash, found.runtime))
        about = (metadata.get("generation"), version, notes.recipe)
    if not (isinstance(found, JobRefusal) and found.reason is AcceptedReason.RECIPE_NOT_FOUND):
        notes.admitted = {about: found}
    return found


def _runtime(job: resources.Json, world: OperatorWorld) -> resources.Json | None:
    """The object that holds the job's runtime: the job's own snapshot, else what it names, else the default."""
    metadata = job["metadata"]
    snapshot = world.caches[resources.CONFIGMAPS].get(metadata["namespace"], runtime_config_map(metadata["name"]))
    if snapshot is not None and observed.owner_of(snapshot).get("uid") == metadata["uid"]:
        return snapshot
    kind, name = _runtime_name(job, world)
    if not name:
        return None
    if kind == resources.RUNTIMES.kind:
        return world.caches[resources.RUNTIMES].get(metadata["namespace"], name)
    cache = world.cached(resources.CLUSTER_RUNTIMES)
    return cache.get("", name) if cache is not None else None


def _runtime_name(job: resources.Json, world: OperatorWorld) -> tuple[str, str]:
    ref = job["spec"].get("runtimeRef") or {}
    return ref.get("kind", resources.CLUSTER_RUNTIMES.kind), ref.get("name", world.settings.default_runtime)


def _runtime_spec(
    runtime: resources.Json | None, job: resources.Json, world: OperatorWorld
) -> tuple[RuntimeSpec | None, str]:
    """The runtime, or why there is none."""
    kind, name = _runtime_name(job, world)
    if runtime is None:
        if not name:
            problem = "the job names no runtime (spec.runtimeRef) and the operator has no default (--default-runtime)"
            return None, problem
        return None, f"there is no {kind} {name}; `kubectl get clusterrlruntimes,rlruntimes` lists what there is"
    try:
        if runtime["kind"] == resources.CONFIGMAPS.kind:
            return read_snapshot(runtime), ""
        return runtime_from_object(runtime).spec, ""
    except ConfigError as error:
        return None, f"{kind} {name} can't be used: {words_of(error)}"


async def _recipe(job: resources.Json, parsed: RLJob, state: JobState, world: OperatorWorld) -> str | None:
    """The recipe's text, when it comes from a ConfigMap; None when it doesn't, or isn't there.

    It is read once. A job that was prepared has its own copy: whatever became of the ConfigMap, who scores stays.
    """
    named = parsed.spec.recipe.config_map if parsed.spec.recipe is not None else None
    if named is None:
        return None
    key = resources.key_of(job)
    notes = world.notes(key, job["metadata"]["uid"])
    if notes.recipe is not None:
        return notes.recipe
    found = await world.api.get(resources.CONFIGMAPS, key[0], named.name)
    notes.recipe = (found or {}).get("data", {}).get(named.key)
    if notes.recipe is None and state.prepared:
        notes.recipe = _as_prepared(world, job["metadata"]["uid"])
    return notes.recipe


def _as_prepared(world: OperatorWorld, uid: str) -> str | None:
    """A text that says of `reward` what the lost recipe said, by what the job's pods were told then."""
    kept = resolved_text(world.caches[resources.CONFIGMAPS].owned_by(uid))
    if kept is None:
        return None
    verifier = ResolvedJob.parse(kept, "the job's ConfigMap").verifier
    return "def reward(**row): ...\n" if verifier == "custom" else "\n"


# Kueue


def _queue(job: resources.Json, world: OperatorWorld) -> observed.QueueEntry | None:
    """The job's place in the queue that its label names; one that has a place keeps it without the label, too."""
    metadata, cache = job["metadata"], world.cached(resources.WORKLOADS)
    found = cache.get(*resources.key_of(job)) if cache is not None else None
    if found is not None and observed.owner_of(found).get("uid") != metadata["uid"]:
        found = None
    name = (metadata.get("labels") or {}).get(QUEUE_LABEL) or (found or {}).get("spec", {}).get("queueName")
    if not name:
        return None
    if cache is None or cache.denied:
        why = cache.denied if cache is not None else "it is not watched"
        return observed.QueueEntry(name, f"Kueue is not there, or the operator may not use it (operator.kueue): {why}")
    return observed.QueueEntry(name, workload=found)


async def _granted(job: RunnableJob, queue: observed.QueueEntry, notes: Notes, world: OperatorWorld) -> RunnableJob:
    """The job as its queue admitted it; flavors are looked up once an admission."""
    admission = (queue.workload or {}).get("status", {}).get("admission") or {}
    if not (given := admission.get("podSetAssignments")):
        return job
    known = notes.granted
    if known is None or known[0] is not job or known[1] != given:
        names = {name for one in given for name in one.get("flavors", {}).values()}
        flavors = {name: await world.api.get(resources.FLAVORS, "", name) or {} for name in sorted(names)}
        known = notes.granted = job, given, quota.granted(job, given, flavors)
    return known[2]


def _sized(job: RunnableJob, servers: int, notes: Notes, *, queued: bool) -> RunnableJob:
    """The job with as many servers as its trainer needs, where it is elastic; by a queue no more than were admitted."""
    asked = job.replicas.get(Role.GENERATION, 0)
    servers = min(servers, asked) if queued else servers
    if job.job.spec.generation.elastic is None or not asked or servers in (0, asked):
        return job
    known = notes.sized
    if known is None or known[0] is not job or known[1] != servers:
        known = notes.sized = job, servers, replace(job, replicas={**job.replicas, Role.GENERATION: servers})
    return known[2]


# What the API server would say


async def _try(job: resources.Json, admitted: RunnableJob, state: JobState, world: OperatorWorld) -> JobRefusal | None:
    """Ask the API server about every object before the first is made, and again when the spec has changed."""
    accepted = state.conditions.get("Accepted")
    generation = job["metadata"].get("generation", 0)
    if state.accepted and accepted is not None and accepted.generation == generation:
        return None
    notes = world.notes(resources.key_of(job), job["metadata"]["uid"])
    about = (generation, admitted.runtime_hash)
    if about in notes.tried and notes.tried[about] is None:
        return None
    notes.tried = {about: await _unreadable(job, admitted, world) or await _dry_run(job, admitted, world)}
    return notes.tried[about]


async def _unreadable(job: resources.Json, admitted: RunnableJob, world: OperatorWorld) -> JobRefusal | None:
    """Refusal for a Secret of `podTemplate` that jobs may not read. No data of it is asked for."""
    namespace, allow = job["metadata"]["namespace"], admitted.runtime.allow
    for name, wanted in secrets_of(admitted.job).items():
        found = await world.api.get(resources.SECRETS, namespace, name, metadata_only=True)
        if (words := refusal_of_secret(namespace, name, found, wanted, allow)) is not None:
            return JobRefusal(AcceptedReason.SECRET_REFUSED, words)
    return None


async def _dry_run(job: resources.Json, admitted: RunnableJob, world: OperatorWorld) -> JobRefusal | None:
    w = wanted_of(job, admitted, world)
    try:
        objects = [*world.build.foundation(w), *world.build.workloads(w)]
        batches = [world.build.prepare_job(w), world.build.finish_job(w)]
    except ConfigError as error:
        return JobRefusal(AcceptedReason.INVALID_SPEC, words_of(error))
    if w.runtime.tls.mode == "SelfSigned":  # an earlier job's, which cert-manager leaves behind, has another type
        objects.append(tls_secret(w, Outsider.OPERATOR, {}))
    objects += [batch for batch in batches if world.caches[resources.JOBS].get(*resources.key_of(batch)) is None]
    answers = await together(_objection(obj, job, world) for obj in objects)
    words = list(dict.fromkeys(answer for answer in answers if answer))
    if not words:  # pods are asked about last: they say again what is wrong with their templates
        words = await _pods_objections([obj for obj in objects if "template" in obj.get("spec", {})], world)
    return JobRefusal(AcceptedReason.DRY_RUN_REJECTED, "; ".join(words)) if words else None


async def _objection(obj: resources.Json, job: resources.Json, world: OperatorWorld) -> str:
    """Why an object can't be; empty when it can. One that isn't there is created: that costs a server half an apply."""
    name, resource = f"{obj['kind']} {obj['metadata']['name']}", resources.resource_of(obj)
    cache = world.cached(resource)
    known = cache.get(*resources.key_of(obj)) if cache is not None else None
    try:
        if known is None and cache is not None:
            await world.api.create(resource, obj, dry_run=True)
        else:
            await world.api.apply(obj, manager=MANAGER, dry_run=True)
    except AlreadyExistsError:
        return f"{name}: an object of that name exists already and is not this job's"
    except (InvalidError, ForbiddenError, NotFoundError, ConflictError) as error:
        if isinstance(error, NotFoundError) and not error.details.get("name"):  # else something, such as the namespace
            return f"the cluster knows no {obj['kind']} of {obj['apiVersion']}, for which the runtime asks: install it"
        return f"{name}: {error.message}"
    owners = [owner["uid"] for owner in known["metadata"].get("ownerReferences", [])] if known is not None else []
    if owners and job["metadata"]["uid"] not in owners:  # one without an owner is the claim that `areal submit` made
        return f"{name}: an object of that name is left from another job"
    if known is not None and observed.run_of(known) not in (None, job["metadata"]["uid"]):
        fix = f"name it in storage.claimName, or remove it: `areal jobs --kept --delete {obj['metadata']['name']}`"
        return f"{name}: it holds an earlier run, which outlived its job (storage.retain): {fix}"
    return ""


async def _pods_objections(makers: Iterable[resources.Json], world: OperatorWorld) -> list[str]:
    """Refusals of the pods of workloads that aren't made yet, by dry run; a phrase a workload."""
    found = [maker for maker in makers if maker["spec"].get("replicas", 1)]
    answers = await together(refusal_of_pods(world.api, maker, own_account=False) for maker in found)
    return [
        f"Pod of {maker['kind']} {maker['metadata']['name']}: {answer}"
        for maker, answer in zip(found, answers, strict=True)
        if answer
    ]


async def _refused_pods(
    job: resources.Json, state: JobState, workloads: Iterable[observed.Workload], world: OperatorWorld
) -> Mapping[Role, str]:
    """Why pods of a role are missing for long, where the API server refuses them now. Asked every `RETRY_PODS_S`."""
    now, key, uid = world.now(), resources.key_of(job), job["metadata"]["uid"]
    scheduled = state.conditions.get(ConditionType.SCHEDULED)
    waits = scheduled is not None and scheduled.status == "False" and now >= scheduled.since + PODS_LATE_S
    if not waits or state.outcome is not None or state.rest is not Rest.AWAKE:
        return {}
    notes = world.notes(key, uid)
    if now < notes.refused_at + RETRY_PODS_S:
        return notes.refused
    makers: dict[Role, resources.Json | None] = {}
    for one in sorted(workloads, key=lambda one: one.name != surge(key[1])):  # of servers the fleet's own set speaks
        if one.pods < one.replicas:
            resource = resources.STATEFULSETS if one.kind == resources.STATEFULSETS.kind else resources.DEPLOYMENTS
            makers[one.role] = world.caches[resource].get(key[0], one.name)
    prepare = _own(world, key, uid, Role.PREPARE) if not state.prepared else None
    if prepare is not None and not world.caches[resources.PODS].owned_by(prepare["metadata"]["uid"]):
        makers[Role.PREPARE] = prepare
    found = {}
    for role, maker in makers.items():
        if maker is not None and (answer := await refusal_of_pods(world.api, maker, own_account=True)):
            found[role] = answer
    notes.refused, notes.refused_at = found, now
    return found


async def _uncertified(
    key: resources.Key, admitted: RunnableJob | None, pods: Iterable[observed.Pod], notes: Notes, world: OperatorWorld
) -> str:
    """Why cert-manager has not issued what pods may wait for. Asked every `RETRY_PODS_S`; empty without the rights."""
    if admitted is None or admitted.runtime.tls.mode != "CertManager" or all(pod.running or pod.over for pod in pods):
        return ""
    if world.now() >= notes.uncertified[0] + RETRY_PODS_S:
        notes.uncertified = world.now(), ""
        with contextlib.suppress(ForbiddenError, NotFoundError):
            listed = await world.api.list(resources.CERTIFICATES, key[0], labels=f"{LABEL_JOB}={key[1]}")
            asked = await world.api.list(resources.CERTIFICATE_REQUESTS, key[0], labels=f"{LABEL_JOB}={key[1]}")
            notes.uncertified = world.now(), observed.uncertified(listed, asked)
    return notes.uncertified[1]


# Children


def _own(world: OperatorWorld, key: resources.Key, uid: str, role: Role) -> resources.Json | None:
    """The job's own batch Job for a role."""
    found = world.caches[resources.JOBS].get(key[0], workload(key[1], role))
    return found if found is not None and observed.owner_of(found).get("uid") == uid else None


def _sets(uid: str, world: OperatorWorld) -> Iterable[resources.Json]:
    for resource in (resources.STATEFULSETS, resources.DEPLOYMENTS):
        yield from world.caches[resource].owned_by(uid)


def _pods(job: resources.Json, key: resources.Key, world: OperatorWorld) -> Iterable[observed.Pod]:
    """The job's pods. Those of an earlier job of the same name may still be ending beside them."""
    born = job["metadata"].get("creationTimestamp", "")
    owners = {
        obj["metadata"]["uid"]: observed.owner_of(obj).get("uid") == job["metadata"]["uid"]
        for resource in (resources.STATEFULSETS, resources.DEPLOYMENTS, resources.JOBS)
        for obj in world.caches[resource].labelled(*key)
    }
    for obj in world.caches[resources.PODS].labelled(*key):
        owner, pod = observed.owner_of(obj), observed.read_pod(obj)
        if pod is None or spec_of(pod.role).beside or not owner:
            continue
        later = obj["metadata"].get("creationTimestamp", "") >= born
        if owner["name"].startswith((workload(key[1], pod.role), surge(key[1]))) and owners.get(owner["uid"], later):
            yield pod


def _nodes(pods: Iterable[observed.Pod], world: OperatorWorld) -> dict[str, observed.NodeState] | None:
    cache = world.cached(resources.NODES)
    if cache is None:
        return None
    found = {name: cache.get("", name) for name in {pod.node for pod in pods if pod.node}}
    return {name: observed.read_node(obj) for name, obj in found.items() if obj is not None}


def _claimed_bytes(world: OperatorWorld, key: resources.Key) -> int:
    """Size that Redis' claim asks for already, in bytes."""
    cache = world.cached(resources.PVCS)
    claim = cache.get(key[0], workload(key[1], Role.REDIS)) if cache is not None else None
    asked = (claim or {}).get("spec", {}).get("resources", {}).get("requests", {}).get("storage", "0")
    return int(amount(asked) or 0)
