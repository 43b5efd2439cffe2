"""A job's life under a seeded schedule of misfortunes, and what must hold whatever happens.

Owns the draw and the invariants. A schedule has two parts: while things go wrong, requests are lost, caches lag,
operators die in the middle of a look, pods and machines fail, and a user changes the job. Then all is calm, and the job
must come to the end that it deserves.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

from areal.plan.cluster_names import LABEL_ROLE, Role
from areal.processes.core import ChildPhase
from areal_operator.kube.errors import ApiError
from areal_operator.kube.resources import Json, Key
from support.fake_cluster import FakeCluster
from support.fake_operator import FakeOperator, ProcessDiedError, Trouble, Write
from support.operator_jobs import job_object
from support.small_children import runtime_object

KEY: Key = ("team", "digits")
STORM = 22
"""Looks while things go wrong."""
CALM = 110
"""Looks within which a job must end when nothing goes wrong any more."""

_CODES = (1, 1, 137, -9, 75, 143)
_DISRUPTIONS = ("EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager")


class BrokenPromiseError(AssertionError):
    """An invariant does not hold."""


@dataclass
class Schedule:
    """One seed's life. `log` says what happened, for people."""

    seed: int
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.cluster = FakeCluster()
        self.cluster.api.put(runtime_object())
        rules = [
            {
                "name": "crash",
                "action": "RestartPod",
                "roles": ["generation"],
                "onExitCodes": {"operator": "In", "values": [9]},
            }
        ]
        self.budget = self.draw.choice((1, 2, 5))
        policy = {"maxRestarts": self.budget, "rules": rules}
        run = {"stallTimeoutSeconds": 120, "startupDeadlineSeconds": 3000, "cleanup": _cleanup(self.draw)}
        algorithm = {"maxSteps": 8}
        self.cluster.api.put(job_object(failurePolicy=policy, runPolicy=run, algorithm=algorithm))
        self.cluster.training.clear()
        self.calm = False
        self.flaky = self.draw.choice((0.0, 0.02, 0.1))
        self.cluster.lag = self.draw.random() < 0.5
        self.blows = 0  # that may cost a restart, each at most one
        self.own = 0  # those of them that are the job's own, and so count
        self.fatal = False  # something happened that may end the job as Failed
        self.deleted = False
        self.operators = 0
        self.ghost: FakeOperator | None = None
        self.watch = Watcher(self)
        self.start_operator()

    def start_operator(self) -> None:
        self.operators += 1
        told = []
        if self.operators > 1:
            told = self.operator.roles.told
            self.ghost = self.operator
            self.ghost.only_status = True  # its lease is over, but one request may be on its way
        self.operator = FakeOperator(self.cluster, self.trouble)
        self.operator.roles.told = told

    async def haunt(self) -> None:
        """The operator before this one, which still believes to lead, looks at what it knew then."""
        assert self.ghost is not None
        self.note("a ghost looks")
        with contextlib.suppress(ProcessDiedError, ApiError):
            await self.ghost.reconcile(KEY)

    def trouble(self) -> Trouble:
        if self.calm or self.draw.random() >= self.flaky:
            return ""
        return self.draw.choice(("unsent", "unanswered", "dies before", "dies after"))

    @property
    def job(self) -> Json | None:
        return self.cluster.api.objects.get(("RLJob", *KEY))

    async def run(self) -> None:
        """The whole life. Raises BrokenPromiseError."""
        for step in range(STORM):
            if self.draw.random() < 0.4:
                self.strike()
            await self.step(step)
        self.settle()
        if self.draw.random() < 0.3:
            await self.sleep()
        self.cluster.change(KEY, lambda spec: spec.update(suspend=False))
        for step in range(CALM):
            await self.step(STORM + step)
            if self.ended:
                break
        self.check_end()

    async def sleep(self) -> None:
        """A user lets the job rest."""
        self.cluster.change(KEY, lambda spec: spec.update(suspend=True))
        self.note("to bed")
        for step in range(CALM):
            await self.step(STORM + step)
            summary = (self.job or {}).get("status", {}).get("summary")
            pods = [pod for pod in self.cluster.pods() if not self.unreachable(pod)]
            if self.deleted or summary in ("Suspended", "Complete", "Failed") or not pods:
                return
        self.require(False, "a job that should rest never does")

    async def step(self, number: int) -> None:
        self.cluster.tick()
        if self.cluster.lag and not self.calm:
            self.cluster.deliver(self.draw.randrange(6))
        else:
            self.cluster.deliver()
        if self.calm or self.draw.random() < 0.8:
            self.operator.roles.poll()
        if not self.calm and self.draw.random() < 0.15:
            return  # nobody looks
        self.operator.writes.clear()
        if self.ghost is not None and not self.calm and self.draw.random() < 0.3:
            await self.haunt()
        try:
            await self.operator.reconcile(KEY)
        except ProcessDiedError:
            self.note(f"{number}: the operator dies")
            self.watch.writes(self.operator.writes)
            self.start_operator()
            return
        except ApiError as error:
            self.note(f"{number}: {error.message}")
        self.watch.writes(self.operator.writes)
        self.watch.state()

    def note(self, text: str) -> None:
        self.log.append(text)

    # Misfortunes.

    def strike(self) -> None:
        """One thing that goes wrong, or that the user wants."""
        happening = self.draw.choice((
            self.child_ends, self.child_ends, self.container_ends, self.pod_deleted, self.pod_evicted, self.hang,
            self.machine_lost, self.machine_back, self.server_crashes, self.rest, self.rest, self.scale, self.hotter,
            self.new_template, self.child_object_lost, self.child_object_lost, self.cut_off, self.operator_replaced,
            self.operator_replaced, self.runtime_edited, self.tool_fails, self.job_deleted,
        ))  # fmt: skip
        happening()

    def child_ends(self) -> None:
        pods = self.cluster.pods(Role.TRAINER)
        if pods and self.cluster.end_child(pod := self.draw.choice(pods), code := self.draw.choice(_CODES)):
            self.own += 1
            self.blow(f"the trainer in {pod['metadata']['name']} ends with {code}")

    def container_ends(self) -> None:
        pods = [pod for pod in self.cluster.pods() if _runs_long(pod) and self.cluster.answers(pod)]
        if pods:
            pod = self.draw.choice(pods)
            self.cluster.end_container(pod, 137, "OOMKilled")
            self.own += _role(pod) is Role.TRAINER
            self.blow(f"the container of {pod['metadata']['name']} ends", pod)

    def pod_deleted(self) -> None:
        if pods := self.cluster.pods():
            pod = self.draw.choice(pods)
            self.cluster.delete_pod(pod)
            self.blow(f"{pod['metadata']['name']} is deleted", pod)

    def pod_evicted(self) -> None:
        if pods := self.cluster.pods(Role.TRAINER):
            pod = self.draw.choice(pods)
            self.cluster.delete_pod(pod, disrupted=self.draw.choice(_DISRUPTIONS))
            self.blow(f"{pod['metadata']['name']} is evicted")

    def machine_lost(self) -> None:
        name = self.draw.choice(("n1", "n2"))
        if not self.cluster.down:
            lost = self.cluster.lose_node(name)
            self.note(f"machine {name} is lost")
            self.blows += sum(_role(pod) is Role.TRAINER for pod in lost)

    def machine_back(self) -> None:
        for name in list(self.cluster.down):
            self.cluster.mend_node(name)
            self.note(f"machine {name} is back")

    def server_crashes(self) -> None:
        pods = [pod for pod in self.cluster.pods(Role.GENERATION) if self.cluster.answers(pod)]
        if pods:
            code = self.draw.choice((1, 9))
            self.cluster.end_container(pod := self.draw.choice(pods), code)
            self.note(f"{pod['metadata']['name']} crashes with {code}")
            self.blows += code == 9
            self.own += code == 9

    def rest(self) -> None:
        def toggle(spec: Json) -> None:
            spec["suspend"] = not spec.get("suspend", False)
            self.note(f"suspend: {spec['suspend']}")

        self.cluster.change(KEY, toggle)

    def scale(self) -> None:
        count = self.draw.randrange(1, 4)
        self.cluster.change(KEY, lambda spec: spec["generation"].update(replicas=count))
        self.note(f"generation is scaled to {count}")

    def new_template(self) -> None:
        env = [{"name": "X", "value": str(self.draw.randrange(100))}]
        self.cluster.change(KEY, lambda spec: spec.update(podTemplate={"generation": {"env": env}}))
        self.note("a new template")

    def hotter(self) -> None:
        count = self.draw.randrange(8, 12)
        self.cluster.change(KEY, lambda spec: spec["algorithm"].update(maxSteps=count))
        self.note(f"maxSteps is {count}")

    def child_object_lost(self) -> None:
        owned = [
            place for place in self.cluster.api.objects
            if place[0] in ("StatefulSet", "Deployment", "ConfigMap", "Job") and place[2] != "digits-runtime"
        ]  # fmt: skip
        if owned:
            place = self.draw.choice(sorted(owned))
            pods = [pod for pod in self.cluster.pods() if pod["metadata"]["name"].startswith(place[2])]
            self.cluster.api.drop(place)
            self.note(f"{place[0]} {place[2]} is deleted by hand")
            self.blows += sum(_role(pod) is Role.TRAINER for pod in pods) if place[0] == "StatefulSet" else 0

    def cut_off(self) -> None:
        self.operator.roles.cut = not self.operator.roles.cut
        self.note(f"cut off: {self.operator.roles.cut}")

    def operator_replaced(self) -> None:
        self.note("another operator")
        self.start_operator()

    def hang(self) -> None:
        if KEY in self.cluster.training and self.cluster.training[KEY].step:
            self.cluster.training[KEY].hung = True
            self.own += 1
            self.blow("the trainers hang")

    def runtime_edited(self) -> None:
        self.cluster.api.put(runtime_object(image=f"registry.test/areal:{self.draw.randrange(100)}"))
        self.note("the runtime is edited")

    def tool_fails(self) -> None:
        role = self.draw.choice((Role.PREPARE, Role.FINISH))
        self.cluster.exit_codes.setdefault(role, []).append(75)
        self.blows += 1
        self.own += 1
        self.note(f"{role} will fail once")

    def job_deleted(self) -> None:
        if self.draw.random() < 0.1:
            self.cluster.api.drop(("RLJob", *KEY))
            self.deleted = True
            self.note("the job is deleted")

    def blow(self, text: str, pod: Json | None = None) -> None:
        self.note(text)
        self.blows += pod is None or _role(pod) is Role.TRAINER

    # The end.

    def settle(self) -> None:
        """Nothing goes wrong any more."""
        self.calm = True
        if self.draw.random() < 0.5:
            self.machine_back()
        self.operator.roles.cut = False
        self.note("calm")

    @property
    def ended(self) -> bool:
        if self.deleted:
            return not any(
                _owned_by_job(obj) and not self.unreachable(obj) for obj in self.cluster.api.objects.values()
            )
        summary = (self.job or {}).get("status", {}).get("summary")
        pods = [pod for pod in self.cluster.pods() if _runs_long(pod) and not self.unreachable(pod)]
        return summary in ("Complete", "Failed") and (not pods or not self.watch.cleans)

    def check_end(self) -> None:
        """The job has come to its end, and nothing is left that should not be."""
        if self.deleted:
            self.require(self.ended, f"left of a deleted job: {list(self.cluster.api.objects)}")
            return
        status = (self.job or {}).get("status", {})
        self.require(self.ended, f"no end: {status.get('summary')} {status.get('conditions')}")
        if status["summary"] == "Failed":
            reason = next(c["reason"] for c in status["conditions"] if c["type"] == "Failed")
            self.require(reason in ("MaxRestartsExceeded", "Stalled"), f"failed for {reason}")
            self.require(self.own > self.budget, f"failed after {self.own} blows of its own, {self.budget} are allowed")
        else:
            self.require(status.get("audit", {"ok": True})["ok"], "complete in spite of its audit")
            self.require(status["progress"]["step"] >= 8, f"complete at {status['progress']['step']}")

    def unreachable(self, obj: Json) -> bool:
        """A pod on a dead machine, which only its cluster's owner can declare dead."""
        return obj["kind"] == "Pod" and obj["spec"].get("nodeName") in self.cluster.down

    def require(self, holds: object, promise: str) -> None:
        if not holds:
            story = "\n  ".join(self.log)
            raise BrokenPromiseError(f"seed {self.seed}: {promise}\n  {story}")


class Watcher:
    """Looks after every look, and knows what must never be seen."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.highest: dict[str, int] = {}
        self.gangs: dict[int, tuple[str, ...]] = {}
        self.formed = 0  # the epoch that was seen with members last
        self.outcome: str | None = None
        self.counted = self.checkpoint = 0
        self.hashes: set[str] = set()
        self.asleep: set[str] | None = None  # pods when the job was seen asleep
        self.cleans = True

    def state(self) -> None:
        job, require = self.schedule.job, self.schedule.require
        if job is None:
            return
        status = job.get("status", {})
        attempts = status.get("attempts", {})
        for name in ("epoch", "restarts"):
            value = attempts.get(name, 0)
            require(value >= self.highest.get(name, 0), f"{name} fell from {self.highest.get(name)} to {value}")
            self.highest[name] = value
        require(attempts.get("restarts", 0) <= self.schedule.blows, f"{attempts} after {self.schedule.blows} blows")
        self._budget(attempts.get("restartsCountTowardsMax", 0), status)
        self._gang(attempts)
        self._claims(status)
        self._outcome(status)
        self._snapshot(status)
        self._sleep(status)
        for told in self.schedule.operator.roles.told:
            require(told.epoch <= told.written, f"{told} was told before it was written")
        self.schedule.operator.roles.told.clear()
        preparing = [pod for pod in self.schedule.cluster.pods(Role.PREPARE) if pod["status"]["phase"] == "Running"]
        require(len(preparing) <= 1, "two pods prepare at once")

    def _budget(self, counted: int, status: Json) -> None:
        """Only the job's own failures count, and a new checkpoint, nothing else, gives them back."""
        require, schedule = self.schedule.require, self.schedule
        checkpoint = status.get("checkpoint", {}).get("step", 0)
        if checkpoint > self.checkpoint:
            self.checkpoint, self.counted = checkpoint, 0
        require(counted >= self.counted, f"the count fell from {self.counted} to {counted} without a checkpoint")
        require(counted <= schedule.own, f"{counted} count after {schedule.own} blows of its own")
        require(counted <= schedule.budget, f"{counted} count, the budget is {schedule.budget}")
        self.counted = counted

    def _gang(self, attempts: Json) -> None:
        members = tuple(attempts.get("members", ()))
        if members:
            epoch = attempts["epoch"]
            known = self.gangs.setdefault(epoch, members)
            self.schedule.require(known == members, f"epoch {epoch} has two gangs: {known}, {members}")
            self.schedule.require(len(members) == 2, f"a gang of {len(members)} where 2 make one")

    def _claims(self, status: Json) -> None:
        """Who says that steps are trained has seen one of this epoch; and no gang is given up in silence."""
        require, attempts = self.schedule.require, status.get("attempts", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        progressing = conditions.get("Progressing", {})
        if progressing.get("status") == "True" and (training := self.schedule.cluster.training.get(KEY)) is not None:
            epoch, made = attempts["epoch"], training.made_by_epoch.get(attempts["epoch"], 0)
            require(made > 0, f"steps are said to be trained in epoch {epoch}, which made none")
        resting = conditions.get("Suspended", {}).get("reason", "NotSuspended") != "NotSuspended"
        ended = any(conditions.get(kind, {}).get("status") == "True" for kind in ("Complete", "Failed"))
        finishing = conditions.get("Complete", {}).get("reason") == "Auditing"
        if resting or ended or finishing:
            self.formed = 0
        elif attempts.get("members"):
            self.require_record(status, attempts["epoch"])
            self.formed = attempts["epoch"]
        else:
            self.require_record(status, 0)
            self.formed = 0

    def require_record(self, status: Json, epoch: int) -> None:
        """An epoch that had members and was left has an entry of its own."""
        if self.formed in (0, epoch):
            return
        epochs = [entry.get("epoch") for entry in status.get("failures", []) if entry["role"] == "trainer"]
        self.schedule.require(self.formed in epochs, f"epoch {self.formed} went without a word: {epochs}")

    def _outcome(self, status: Json) -> None:
        true = [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]
        outcome = next((kind for kind in ("Complete", "Failed") if kind in true), None)
        self.schedule.require(self.outcome in (None, outcome), f"{self.outcome} became {outcome}")
        self.schedule.require(not {"Complete", "Failed"} <= set(true), "complete and failed")
        self.outcome = outcome
        policy = (self.schedule.job or {})["spec"]["runPolicy"]["cleanup"]
        self.cleans = any(rule["when"] == outcome and rule["policy"] == "DeletePods" for rule in policy)

    def _snapshot(self, status: Json) -> None:
        prepared = any(c["type"] == "Prepared" and c["status"] == "True" for c in status.get("conditions", []))
        if prepared:
            self.hashes.add(status["runtimeSnapshot"]["hash"])
            self.schedule.require(len(self.hashes) == 1, "the runtime of a running job changed")

    def _sleep(self, status: Json) -> None:
        """A job that was seen asleep has no pods until it is resumed."""
        asleep = status.get("summary") == "Suspended" and (self.schedule.job or {})["spec"].get("suspend")
        pods = {
            p["metadata"]["uid"] for p in self.schedule.cluster.pods() if p["status"]["phase"] in ("Pending", "Running")
        }
        if not asleep:
            self.asleep = None
        elif self.asleep is None:
            self.asleep = pods
        else:
            self.schedule.require(pods <= self.asleep, "pods of a job that sleeps were created")

    def writes(self, writes: list[Write]) -> None:
        """What the operator asked the server for in one look."""
        require = self.schedule.require
        for write in writes:
            if write.name == "digits-trainer" and write.kind == "StatefulSet" and write.obj:
                self._rest(write.obj)
            if write.verb == "delete" and write.kind == "Pod":
                require(write.uid is not None, f"{write.name} is deleted by name")
                self._eviction(write)
            status_only = write.obj is not None and "status" in write.obj
            if self.outcome and write.verb != "delete" and not status_only:
                require(False, f"{write} after the end")
        servers = [
            write for write in writes if write.verb == "delete" and "generation" in write.name and not write.force
        ]
        require(len([w for w in servers if w.kind == "Pod"]) <= 1, "two servers are replaced at once")

    def _rest(self, trainer: Json) -> None:
        """Nobody's work is thrown away: trainers that can be reached have stopped before their pods go."""
        cluster = self.schedule.cluster
        if trainer["spec"]["replicas"] == 0 and not self.schedule.operator.roles.cut:
            reached = [pod for pod in cluster.pods(Role.TRAINER) if cluster.answers(pod)]
            phases = [cluster.launcher(pod).phase for pod in reached if "deletionTimestamp" not in pod["metadata"]]
            self.schedule.require(ChildPhase.READY not in phases, "trainers lose their pods while they train")

    def _eviction(self, write: Write) -> None:
        """Nobody but the trainers falls with the trainers."""
        found = self.schedule.cluster.pod(KEY[0], write.name)
        if found is None or write.force or _role(found) is Role.TRAINER:
            return
        failed = found["status"]["phase"] == "Failed"
        outdated = _role(found) is Role.GENERATION
        self.schedule.require(failed or outdated, f"{write.name} is deleted without need")


def _cleanup(draw: random.Random) -> list[Json]:
    policy = draw.choice(("DeletePods", "DeletePods", "KeepPods"))
    return [
        {"when": "Complete", "policy": policy, "afterSeconds": 0},
        {"when": "Failed", "policy": policy, "afterSeconds": 30},
    ]


def _role(pod: Json) -> Role:
    return Role(pod["metadata"]["labels"][LABEL_ROLE])


def _runs_long(pod: Json) -> bool:
    return _role(pod) not in (Role.PREPARE, Role.FINISH)


def _owned_by_job(obj: Json) -> bool:
    return any(
        owner["kind"] in ("RLJob", "StatefulSet", "ReplicaSet", "Job")
        for owner in obj["metadata"].get("ownerReferences", [])
    )
