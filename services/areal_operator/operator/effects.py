"""Effects of a decision: writes to the API server and orders to a job's roles.

Owns how each effect is carried out, idempotently: one that fails is done again by the next reconcile. An order to a
role may be lost; a refusal of the API server ends the reconcile.
"""

import base64
import contextlib
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from areal.plan import cluster_names as names
from areal.plan.callers import Outsider
from areal.plan.cluster_names import Role, run_claim
from areal.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE, TlsIdentity

from areal_operator.kube import resources
from areal_operator.kube.errors import AlreadyExistsError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from areal_operator.operator import certificates, quota
from areal_operator.operator.children import JobBlueprint
from areal_operator.operator.children.foundation import ownership
from areal_operator.operator.children.tls import AUTHORITY, certificate_names, tls_secret
from areal_operator.operator.decision import Decision, Eviction
from areal_operator.operator.drift import differs, inputs_hash, settled
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import JobOutcome, JobState
from areal_operator.operator.observe import access, remember_access, wanted
from areal_operator.operator.observed import BatchJob, BatchStage, Observation, Pod, Workload, owner_of, run_of
from areal_operator.operator.reports import Targets
from areal_operator.operator.together import together
from areal_operator.operator.world import OperatorWorld
from areal_operator.runtime.api import MANAGER

log = logging.getLogger(__name__)

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


class Effects:
    """Applies one reconcile's decision to the API server and the roles."""

    def __init__(self, seen: Observation, world: OperatorWorld) -> None:
        self._seen = seen
        self._world = world
        self._uid = seen.raw["metadata"]["uid"]
        self._notes = world.notes(seen.key, self._uid)

    @property
    def _inputs(self) -> str:
        assert self._seen.admitted is not None
        known = self._notes.inputs
        if known is None or known[0] is not self._seen.admitted:
            known = self._notes.inputs = (self._seen.admitted, inputs_hash(self._seen.admitted))
        return known[1]

    # Children

    async def lay_foundation(self) -> None:
        """Account, volumes, files, network rules; and the Secret, which is made once. Pods come after all of them."""
        await self._keep_certificates()
        foundation = wanted(self._seen, self._world)
        await together([self._settle("foundation", foundation, self._world.build.foundation), self._make_secret()])

    async def _make_secret(self) -> None:
        """Asked for first only where an earlier look may have made it."""
        if self._seen.state.accepted and await access(self._seen.key, self._uid, self._world) is not None:
            return
        secret = self._world.build.access_secret(wanted(self._seen, self._world))
        try:
            remember_access(
                await self._world.api.create(resources.SECRETS, secret), self._uid, self._notes, self._world.now()
            )
        except AlreadyExistsError:
            log.info("%s/%s: its Secret is there already", *self._seen.key)
            await access(self._seen.key, self._uid, self._world)

    @property
    def _tls(self) -> str:
        return "Disabled" if self._seen.admitted is None else self._seen.admitted.runtime.tls.mode

    async def _keep_certificates(self) -> None:
        """Now and then sign what is due, the authority's Secret first, and learn the operator's own certificate."""
        if self._tls == "Disabled" or (now := self._world.now()) < self._notes.tls_due:
            return
        w, operator = wanted(self._seen, self._world), f"{Outsider.OPERATOR}"
        wrong: dict[str, dict[str, str]] = {}
        if self._tls == "SelfSigned":
            called = certificate_names(w)
            read = await together(self._certificate(who) for who in (AUTHORITY, *called))
            before, held = read[0].get(certificates.STATE_KEY), dict(zip(called, read[1:], strict=True))
            kept = certificates.AuthorityState.parse(before) if before else None
            state, wrong = certificates.due(kept, held, called, now)
            if state != kept:
                authority = tls_secret(w, AUTHORITY, {certificates.STATE_KEY: state.text()})
                await self._world.api.apply(authority, manager=MANAGER)
            await together(
                self._world.api.apply(tls_secret(w, who, data), manager=MANAGER) for who, data in wrong.items()
            )
        own = wrong.get(operator) or await self._certificate(operator)
        parts = [own.get(name, "").encode() for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)]
        if all(parts):
            self._notes.tls, self._notes.tls_due = TlsIdentity(*parts), now + certificates.SPREAD_S

    async def _certificate(self, whose: str) -> dict[str, str]:
        """What a holder's Secret has. Raises ConflictError while an earlier job's isn't deleted yet."""
        namespace, name = self._seen.key[0], names.tls_secret(self._seen.key[1], whose)
        found = await self._world.api.get(resources.SECRETS, namespace, name) or {"metadata": {}}
        owner = owner_of(found)
        if owner.get("kind") == resources.RLJOBS.kind and owner["uid"] != self._uid:
            raise ConflictError(409, "Conflict", f"the Secret {name} is an earlier job's, and goes with it")
        return {key: base64.b64decode(text).decode() for key, text in (found.get("data") or {}).items()}

    async def run_prepare(self) -> None:
        """The Job that prepares, unless there is one, or a pod of one: never two at once on one directory."""
        if self._seen.prepare.stage is BatchStage.ABSENT and self._is_free(Role.PREPARE):
            await self._apply([self._world.build.prepare_job(wanted(self._seen, self._world))])

    async def run_finish(self) -> None:
        """The Job that finishes, likewise."""
        if self._seen.finish.stage is BatchStage.ABSENT and self._is_free(Role.FINISH):
            await self._apply([self._world.build.finish_job(wanted(self._seen, self._world))])

    def _is_free(self, role: Role) -> bool:
        return all(pod.over for pod in self._seen.of(role))

    async def run_workloads(self, replicas: Mapping[Role, int]) -> None:
        """Services, budgets, and so many pods of each role."""
        asked = {role.value: count for role, count in replicas.items()}
        await self._settle("workloads", wanted(self._seen, self._world, asked), self._world.build.workloads)

    async def _settle(self, part: str, w: JobBlueprint, build: Callable[[JobBlueprint], list[resources.Json]]) -> None:
        """Apply a part of the children, unless it was as it should be and nothing has changed since.

        To build all children takes ten milliseconds, which a thousand quiet jobs would pay every few seconds.
        """
        made_of = (self._seen.admitted, dict(w.replicas), w.secrets, w.files, w.redis_bytes)
        known = self._notes.settled.get(part)
        if known is not None and _same(known[0], made_of) and known[1] == self._versions():
            return
        self._notes.settled.pop(part, None)
        if not await self._apply(build(w)):
            self._notes.settled[part] = made_of, self._versions()

    def _versions(self) -> list[object]:
        """The versions of all that the job owns."""
        return [one for cache in self._world.caches.values() for one in cache.versions(self._uid)]

    async def _apply(self, objects: Sequence[resources.Json]) -> bool:
        """Apply what is not as it should be, several at a time; whether anything wasn't."""
        inputs, changed = self._inputs, False
        due: list[Awaitable[None]] = []
        for desired in objects:
            resource = resources.resource_of(desired)
            cache = self._world.cached(resource)
            observed = cache.get(*resources.key_of(desired)) if cache is not None else None
            if observed is not None and owner_of(observed).get("uid") not in (self._uid, None):
                changed = True
                continue  # an earlier job's, which is being deleted
            desired = settled(desired, observed, inputs)
            if observed is not None and not differs(desired, observed):
                continue
            digest = hashlib.sha256(json.dumps(desired, sort_keys=True).encode()).hexdigest()
            place = (desired["kind"], desired["metadata"]["name"])
            if observed is not None and self._notes.applied.get(place) == (digest, _mark(observed)):
                continue  # the server keeps it in other words than ours
            if cache is None and self._notes.applied.get(place, ("", ""))[0] == digest:
                continue
            due.append(self._apply_one(desired, place, digest))
        await together(due)
        return changed or bool(due)

    async def _apply_one(self, desired: resources.Json, place: tuple[str, str], digest: str) -> None:
        answer = await self._world.api.apply(desired, manager=MANAGER)
        self._notes.applied[place] = (digest, _mark(answer))

    async def keep_claim(self, state: JobState) -> None:
        """Take the run's own claim from its owners, also one that `areal submit` wrote, or give it back: as
        `storage.retain` says."""
        admitted, (namespace, name) = self._seen.admitted, self._seen.key
        cache = self._world.cached(resources.PVCS)
        claim = cache.get(namespace, run_claim(name)) if cache is not None else None
        if admitted is None or claim is None or admitted.job.spec.storage.claim_name is not None:
            return
        retain, run, owner = admitted.job.spec.storage.retain, run_of(claim), owner_of(claim).get("uid")
        stays = retain == "All" or (retain == "Model" and (state.finishing or state.outcome is JobOutcome.COMPLETE))
        another = run not in (None, self._uid) or owner not in (None, self._uid)
        if another or ((run is not None) == stays and bool(claim["metadata"].get("ownerReferences")) != stays):
            return
        patch = {"metadata": ownership(wanted(self._seen, self._world), stays=stays)}
        with contextlib.suppress(ConflictError, NotFoundError):
            await self._world.api.merge(resources.PVCS, namespace, run_claim(name), patch)
            if stays:
                text = f"the claim {run_claim(name)} outlives the job (storage.retain): `areal jobs --kept` lists it"
                await self._world.recorder.event(self._seen.raw, type="Normal", reason="ClaimStays", message=text)

    async def keep_place(self, decision: Decision) -> None:
        """The Workload: asked for while the job would run, told of it, given back once no pod is left."""
        (namespace, name), step = self._seen.key, quota.step_of(self._seen, decision)
        if step == "keep" or self._seen.queue is None:
            return
        if step == "ask":
            await self._queue_up(self._seen.queue.queue)
        elif step == "withdraw":
            await self._world.api.delete(resources.WORKLOADS, namespace, name)
        else:
            patch = quota.told(self._seen, step, decision, self._world.now())
            with contextlib.suppress(ConflictError, NotFoundError):  # the watch brings what is newer, and us back
                await self._world.api.merge(resources.WORKLOADS, namespace, name, patch, subresource="status")

    async def _queue_up(self, queue: str) -> None:
        """Make the Workload, or bring it up to date. Its priority is that of its class, as Kueue wants both."""
        assert self._seen.admitted is not None
        label, priority = (self._seen.raw["metadata"].get("labels") or {}).get(PRIORITY_LABEL), {}
        source = resources.QUEUE_PRIORITIES if label else resources.PRIORITIES
        if name := label or self._seen.admitted.job.spec.scheduling.priority_class_name:
            found = await self._world.api.get(source, "", name)
            reference = {"group": source.group, "kind": source.kind, "name": name}
            priority = {"priority": int((found or {}).get("value", 0)), "priorityClassRef": reference}
        made, event = self._world.build.quota_request, self._world.recorder.event
        wants = wanted(self._seen, self._world)
        try:
            await self._settle(f"{queue} {priority}", wants, lambda w: [made(w, queue, priority)])
        except (InvalidError, ForbiddenError) as error:
            await event(self._seen.raw, type="Warning", reason="WorkloadRefused", message=error.message)

    async def retire(self, batches: Iterable[BatchJob]) -> None:
        """Delete Jobs with their pods: gone only when the pods are."""
        for batch in batches:
            await self._world.api.delete(resources.JOBS, self._seen.key[0], batch.name, uid=batch.uid, background=False)

    async def remove(self, workloads: Iterable[Workload]) -> None:
        """Delete StatefulSets and Deployments, and so their pods."""
        for workload in workloads:
            resource = resources.STATEFULSETS if workload.kind == resources.STATEFULSETS.kind else resources.DEPLOYMENTS
            await self._world.api.delete(resource, self._seen.key[0], workload.name, uid=workload.uid)

    async def evict(self, evictions: Iterable[Eviction]) -> None:
        """Delete pods, each by uid, and say why."""
        for eviction in evictions:
            pod = eviction.pod
            gone = await self._world.api.delete(
                resources.PODS, self._seen.key[0], pod.name, uid=pod.uid, grace_s=0 if eviction.force else None
            )
            if gone:
                reason = "PodForceDeleted" if eviction.force else "PodReplaced"
                text = f"{pod.name} is deleted: {eviction.why}"
                kind = "Warning" if eviction.force else "Normal"
                await self._world.recorder.event(self._seen.raw, type=kind, reason=reason, message=text)  # type: ignore[arg-type]

    async def delete_job(self) -> None:
        """The job itself has outlived its time."""
        namespace, name = self._seen.key
        await self._world.api.delete(resources.RLJOBS, namespace, name, uid=self._uid)

    # Roles

    async def listen(self) -> None:
        """Ask the controller and the trainers how they do, from now on."""
        token = await access(self._seen.key, self._uid, self._world)
        await self._keep_certificates()
        trainers = tuple(pod for pod in self._seen.of(Role.TRAINER) if pod.ip and not pod.over)
        controllers = [pod for pod in self._seen.of(Role.CONTROLLER) if pod.ip and pod.running and not pod.terminating]
        unknown = self._tls != "Disabled" and self._notes.tls is None
        if not token or unknown or not (trainers or controllers):
            return self.listen_no_more()
        controller = max(controllers, key=lambda pod: pod.ready, default=None)
        return self._world.reports.follow(self._seen.key, Targets(controller, trainers, token, self._notes.tls))

    def listen_no_more(self) -> None:
        """Ask nobody."""
        self._world.reports.forget(self._seen.key)

    def tell_epoch(self, pods: Sequence[Pod], epoch: int) -> None:
        """Have trainers run in an epoch that is written down. An order that isn't heard is given again."""
        for pod in pods:
            self._world.reports.restart(self._seen.key, pod, epoch)

    def drain(self, pods: Sequence[Pod]) -> None:
        """Have trainers save and stop."""
        for pod in pods:
            self._world.reports.drain(self._seen.key, pod)

    async def set_hot(self, hot: HotFields | None) -> None:
        """Have the controller work with the spec's values; told once its report has them."""
        ordered, report = self._notes.hot_ordered, self._seen.reports.controller
        if hot is not None:
            self._notes.hot_ordered = hot
            self._world.reports.set_hot(self._seen.key, hot)
        elif ordered is not None and report is not None and report.hot == ordered:
            self._notes.hot_ordered = None
            hot = ordered
            text = (
                f"maxSteps {hot.max_steps}, maxStaleness {hot.max_staleness}, ahead {hot.ahead}, "
                f"maxConcurrentRollouts {hot.max_concurrent_rollouts}"
            )
            await self._world.recorder.event(self._seen.raw, type="Normal", reason="HotFieldsSet", message=text)


def _same(known: tuple[object, ...], now: tuple[object, ...]) -> bool:
    """Whether children would be made of the same. Admissions are compared by identity: they are kept while equal."""
    return known[0] is now[0] and known[1:] == now[1:]


def _mark(obj: resources.Json) -> str:
    """Changes when somebody changes what we apply: a generation where there is one, else the version."""
    metadata = obj["metadata"]
    return f"{metadata.get('uid')}/{metadata.get('generation') or metadata.get('resourceVersion')}"
