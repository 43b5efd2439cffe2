"""Teams that share a fleet by Kueue itself: fair shares, priorities, and what status, metrics and commands tell of it.

What must hold at every moment is read from everything that the API server ever showed of pods, Workloads and jobs, in
the order of its writes. The queues are those of docs/kubernetes.md.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.cli.main import app
from areal.record.episode_ends import wasted_share
from kube import kueue
from kube.fleet_accounts import LATE_S, Ledger, cards, in_order, over, spent, unaccounted
from kube.follow import History
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.fixtures import fresh_namespace
from kube.harness.fleet import LABEL as FAKE_NODE
from kube.harness.fleet import Fleet
from kube.harness.processes import eventually
from kube.jobs import API, Object, brief, condition, read, rljob, summary, wait_for
from kube.operators import Operator
from kube.test_kube_gpus import gpu_runtime
from support.scripted_pods import ScriptedPods
from typer.testing import CliRunner

from tools.doc_blocks import ROOT, all_blocks

__all__ = ["gpu_runtime"]
pytestmark = [pytest.mark.kube_api, pytest.mark.nightly, pytest.mark.usefixtures("real", "gpu_runtime", "operator")]

PAGE = "docs/kubernetes.md"
SETTINGS = {
    "fairSharing": "{preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]}",
    "resources": "{excludeResourcePrefixes: [cpu, memory, ephemeral-storage]}",
}
SHARED, OWN = 24, 8  # GPUs on the page: of nobody, and of each team
BATCH = 64  # groups of a step: a sample for each process at least
SEED = int(os.environ.get("SEED", "1"))
JOBS = 16  # of the random schedule
PER_EVENT = 12  # versions of objects that are awaited between two acts of the schedule


@pytest.fixture(scope="module")
def real(cluster: Cluster, workplace: Path) -> Iterator[kueue.Kueue]:
    """Kueue itself, with the settings of the page."""
    page = (ROOT / PAGE).read_text()
    for name, value in SETTINGS.items():
        assert f"`{name}: {value}`" in page
    directory = workplace / "kueue-fair"
    directory.mkdir()
    one = kueue.Kueue(cluster, directory, **{name: yaml.safe_load(value) for name, value in SETTINGS.items()})
    try:
        one.start()
        yield one
    finally:
        one.stop()


@dataclass
class Teams:
    """Two namespaces with a queue each, in one cohort."""

    research: str
    product: str
    queues: list[Object]


@pytest.fixture
def teams(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Teams]:
    """The teams of the page, under names of this test; or as the parameter `(weight, weight, shared GPUs)` says."""
    (text,) = [one.text for one in all_blocks() if one.page == PAGE and "kind: Cohort" in one.text]
    with fresh_namespace(cluster) as research, fresh_namespace(cluster) as product:
        names = {"research": research, "product": product, "fleet": f"fleet-{research}", "h200": f"h200-{research}"}
        text = re.sub("|".join(names), lambda match: names[match[0]], text)
        objects = yaml.safe_load(text)["items"]
        if (changed := getattr(request, "param", None)) is not None:
            queues = [one for one in objects if one["kind"] == "ClusterQueue"]
            for one, weight in zip(queues, changed[:2], strict=True):
                one["spec"]["fairSharing"]["weight"] = weight
            (cohort,) = [one for one in objects if one["kind"] == "Cohort"]
            cohort["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = changed[2]
        for one in objects:
            cluster.admin.create(one)
        yield Teams(research, product, objects)
        for namespace in (research, product):
            for job in cluster.admin.list(API, "RLJob", namespace):
                cluster.admin.delete(job)
        for one in reversed(objects):
            cluster.admin.delete(one)


def on_gpus(namespace: str, name: str, trainer: int, *, servers: int = 0, priority: str = "", **blocks: Any) -> Object:
    """A job whose trainer has so many GPUs, in pods of at most eight, and each server one."""
    replicas = -(-trainer // 8)
    engine = {"replicas": servers, "engine": {"type": "sglang"}} if servers else {"engine": {"type": "embedded"}}
    job = rljob(
        namespace,
        name,
        trainer={"gpus": trainer // replicas, "replicas": replicas},
        generation={**engine, **blocks.pop("generation", {})},
        algorithm={"batchSize": BATCH, **blocks.pop("algorithm", {})},
        rollout={"maxConcurrentRollouts": 2 * BATCH},
        runtimeRef={"name": "areal-sglang" if servers else "areal-cpu"},
        **blocks,
    )
    return kueue.labelled(job, queue="gpus", **({"priority": priority} if priority else {}))


def held(admin: Client, namespace: str, name: str = "") -> int:
    """GPUs of the pods of a namespace, or of one job."""
    labels = f"areal.dev/rljob={name}" if name else "areal.dev/rljob"
    return sum(cards(pod["spec"]) for pod in admin.list("v1", "Pod", namespace, labels) if not over(pod))


def words(admin: Client, namespace: str) -> dict[str, str]:
    return {job["metadata"]["name"]: summary(job) for job in admin.list(API, "RLJob", namespace)}


def with_word(admin: Client, namespace: str, word: str) -> list[str]:
    return sorted(name for name, told in words(admin, namespace).items() if told == word)


def listed(cluster: Cluster, namespace: str) -> dict[str, dict[str, str]]:
    """What `areal jobs` says."""
    told = CliRunner().invoke(app, ["jobs", "-n", namespace, "--kubeconfig", str(cluster.kubeconfig), "--json"])
    assert told.exit_code == 0, told.exception
    return {row["job"]: row for row in json.loads(told.output)}


def end(admin: Client, pods: ScriptedPods, namespace: str, name: str) -> None:
    """Let a job come to its end in a few steps."""
    steps = pods.run(namespace, name).step + 3
    admin.patch(read(admin, namespace, name), {"spec": {"algorithm": {"maxSteps": steps}}})
    wait_for(admin, namespace, name, Complete="True")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("teams", "lent", "research", "product"),
    [(None, SHARED, 24, 16), ((1, 1, 16), 16, 16, 16)],
    ids=["two-to-one", "one-to-one"],
    indirect=["teams"],
)
def test_a_team_borrows_a_fleet_and_gives_back_what_another_asks_for(
    cluster: Cluster,
    admin: Client,
    pods: ScriptedPods,
    operator: Operator,
    teams: Teams,
    lent: int,
    research: int,
    product: int,
) -> None:
    everything = lent + 2 * OWN
    names = [f"r{number}" for number in range(everything // 8)]
    for name in names:
        admin.create(on_gpus(teams.research, name, 8))
    eventually(lambda: with_word(admin, teams.research, "Running") == names, "one team has the whole fleet")
    assert held(admin, teams.research) == everything
    runs = {name: pods.run(teams.research, name) for name in names}
    for run in runs.values():
        eventually(lambda run=run: run.step >= 3, "some steps")
        run.hold_drain = True

    asked = [f"p{number}" for number in range(product // 8)]
    for name in asked:
        admin.create(on_gpus(teams.product, name, 8))
    evicted: list[str] = []
    while len(with_word(admin, teams.product, "Running")) < len(asked):
        before = len(with_word(admin, teams.product, "Running"))
        leaving = eventually(
            lambda: [
                name
                for name in with_word(admin, teams.research, "Suspending")
                if condition(read(admin, teams.research, name), "Suspended").get("reason") == "CheckpointPending"
            ],
            "a job that borrowed is told to save",
        )
        assert (held(admin, teams.research), held(admin, teams.product)) == (everything - 8 * before, 8 * before)
        evicted += leaving
        for name in leaving:
            pods.finish_drain(teams.research, name)
        eventually(
            lambda before=before: len(with_word(admin, teams.product, "Running")) > before, "the other team's job runs"
        )
    assert len(evicted) == len(asked) == (everything - research) // 8, "no job had to go for nothing"
    saved = {name: runs[name].checkpoint_step for name in evicted}
    assert all(saved.values())

    for run in runs.values():
        run.hold_drain = False
    stays = sorted(set(names) - set(evicted))
    trained = sum(runs[name].step for name in stays)
    eventually(lambda: sum(runs[name].step for name in stays) > trained + 50, "the fleet is at rest")
    assert with_word(admin, teams.research, "Running") == stays
    assert with_word(admin, teams.research, "Queued") == sorted(evicted)
    assert with_word(admin, teams.product, "Running") == asked
    assert (held(admin, teams.research), held(admin, teams.product)) == (research, product)
    assert all(runs[name].epochs == [1] for name in stays)
    for namespace, share in ((teams.research, research), (teams.product, product)):
        rows = listed(cluster, namespace)
        assert sum(int(row["gpus"]) for row in rows.values()) == share
        assert operator.metric("areal_rljob_gpus", namespace=namespace) == share
        assert {name for name, row in rows.items() if row["gpus"] == "0"} == set(evicted) & set(rows)

    end(admin, pods, teams.product, asked[0])
    back = eventually(
        lambda: [name for name in evicted if name in with_word(admin, teams.research, "Running")], "one comes back"
    )
    run = runs[back[0]]
    assert (run.epochs, run.restored) == ([1, 2], saved[back[0]])
    eventually(lambda: run.step > saved[back[0]], "it goes on")
    assert read(admin, teams.research, back[0])["status"]["attempts"]["restarts"] == 0


def priorities(admin: Client, namespace: str, **values: int) -> None:
    for name, value in values.items():
        metadata = {"name": f"{name}-{namespace}"}
        admin.create({"apiVersion": kueue.API, "kind": "WorkloadPriorityClass", "metadata": metadata, "value": value})


@pytest.mark.timeout(300)
def test_the_more_urgent_job_goes_first_and_of_equal_ones_the_older(
    admin: Client, pods: ScriptedPods, teams: Teams
) -> None:
    where = teams.research
    priorities(admin, where, low=1, high=100, top=1000)
    most = SHARED + OWN  # two of these don't fit, even with what the other team lends
    with History(admin, where, (kueue.API, "Workload")) as history:
        order = [("holder", "top"), ("old", "low"), ("young", "low"), ("urgent", "high")]
        for name, priority in order:
            job = on_gpus(where, name, most, priority=f"{priority}-{where}", algorithm={"maxSteps": 20})
            if name == "holder":
                pods.run(where, name).paused = True
            admin.create(job)
            wait_for(admin, where, name, **({"TrainerReady": "True"} if name == "holder" else {"summary": "Queued"}))
            made = eventually(lambda name=name: kueue.workload(admin, where, name), "its Workload")["metadata"]
            stamp = made["creationTimestamp"]
            eventually(lambda stamp=stamp: later(admin, stamp), "a second in which the next one is younger")
        pods.run(where, "holder").paused = False
        for name, _ in order:
            wait_for(admin, where, name, Complete="True", timeout_s=120)
    admitted: list[str] = []
    for _, one in history.events:
        name = one["metadata"]["name"]
        if kueue.holds(one, "Admitted") and name not in admitted:
            admitted.append(name)
    assert admitted == ["holder", "urgent", "old", "young"]


@pytest.mark.timeout(300)
def test_the_quota_of_a_deleted_job_is_free_while_its_pods_still_go(admin: Client, kwok: Fleet, teams: Teams) -> None:
    where, most = teams.research, SHARED + OWN
    for name in ("first", "second"):
        admin.create(on_gpus(where, name, most))
        wait_for(admin, where, name, summary="Running" if name == "first" else "Queued")
    with kwok.lingering(where, "first-trainer-0"):
        admin.delete(read(admin, where, "first"))
        wait_for(admin, where, "second", summary="Running")
        assert held(admin, where, "first") == 8
        assert held(admin, where, "second") == most
    eventually(lambda: not held(admin, where, "first"), "it is gone")


def later(admin: Client, stamp: str) -> bool:
    """Whether what the API server makes now is a second younger than something: by the time that a dry run gets."""
    metadata = {"namespace": "default", "generateName": "time-"}
    made = admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, dry_run=True)
    return str(made["metadata"]["creationTimestamp"]) > stamp


@pytest.mark.timeout(600)
def test_a_random_schedule_keeps_to_its_quota_starves_nobody_and_is_accounted_for(
    cluster: Cluster,
    admin: Client,
    pods: ScriptedPods,
    operator: Operator,
    teams: Teams,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dice = random.Random(SEED)
    where = (teams.research, teams.product)
    priorities(admin, teams.research, low=1, high=100)
    kinds = (("v1", "Pod"), (kueue.API, "Workload"), (API, "RLJob"))
    jobs: dict[tuple[str, str], Object] = {}
    resting: list[tuple[str, str]] = []
    removed: set[tuple[str, str]] = set()
    acts = ["submit"] * (JOBS - 4) + ["delete", "suspend", "suspend", "resume", "delete"]
    dice.shuffle(acts)
    acts = ["submit"] * 4 + acts
    with History(admin, where[0], *kinds) as first, History(admin, where[1], *kinds) as second:

        def awake() -> list[tuple[str, str]]:
            follow_fleets(admin, pods, where)
            return sorted(key for key in jobs if key not in removed and key not in resting and not over_by(admin, key))

        def passed(count: int) -> Callable[[], bool]:
            def probe() -> bool:
                follow_fleets(admin, pods, where)
                return len(first.events) + len(second.events) >= count

            return probe

        for act in acts:
            target = len(first.events) + len(second.events) + dice.randrange(2 * PER_EVENT)
            if jobs:
                eventually(passed(target), "something happens", timeout_s=60, every_s=0.3)
            if act == "submit":
                job = random_job(dice, dice.choice(where), f"j{len(jobs)}", teams.research)
                key = (job["metadata"]["namespace"], job["metadata"]["name"])
                run = pods.run(*key)
                run.fates = {"generated": 1000, "lost": dice.randrange(100), "stale": dice.randrange(50)}
                run.gated = "elastic" in job["spec"]["generation"]
                jobs[key] = admin.create(job)
            elif act == "resume" and resting:
                admin.patch(jobs[resting.pop(0)], {"spec": {"suspend": False}})
            elif act != "resume" and (there := awake()):
                key = dice.choice(there)
                if act == "delete":
                    admin.delete(jobs[key])
                    removed.add(key)
                else:
                    admin.patch(jobs[key], {"spec": {"suspend": True}})
                    resting.append(key)
        for key in resting:
            admin.patch(jobs[key], {"spec": {"suspend": False}})
        resting.clear()

        def ended() -> bool:
            waiting = awake()
            assert not waiting, "\n".join(f"{key} {brief(read(admin, *key))}" for key in waiting)
            return True

        eventually(ended, "every job comes to its end", timeout_s=300, every_s=0.5)
        eventually(lambda: held(admin, where[0]) + held(admin, where[1]) == 0, "no pod has a GPU")
        left = sorted(set(jobs) - removed)
        eventually(
            lambda: all(read(admin, *key)["status"].get("usage", {}).get("gpus") == 0 for key in left), "it is told"
        )

    versions = in_order(first, second)
    ledger = Ledger(SHARED + 2 * OWN)
    for kind, obj, _ in versions:
        ledger.read(kind, obj)
    assert not ledger.wrong, "\n".join(ledger.wrong[:20])
    assert ledger.most > ledger.quota // 2, "the schedule fills the fleet"
    ends = {key: condition(read(admin, *key), "Complete").get("status") for key in left}
    assert set(ends.values()) == {"True"}, ends

    assert not (wrong := unaccounted(versions)), "\n".join(wrong[:20])
    counted = spent(versions)
    rows = {(namespace, name): row for namespace in where for name, row in listed(cluster, namespace).items()}
    assert set(rows) == set(left)
    off = 0.0
    late = sum(read(admin, *key)["status"]["usage"]["gpuSeconds"] - counted[key].seconds for key in left)
    assert abs(late) <= sum(counted[key].changed for key in left), "looks that come late don't add up"
    for key in left:
        mine, run, status = counted[key], pods.run(*key), read(admin, *key)["status"]
        told = status["usage"]["gpuSeconds"]
        assert abs(told - mine.seconds) <= mine.tolerance, (key, told, mine)
        off = max(off, abs(told - mine.seconds) / mine.changed)
        assert operator.metric("areal_rljob_gpu_seconds_total", namespace=key[0], rljob=key[1]) == told
        assert operator.metric("areal_rljob_gpus", namespace=key[0], rljob=key[1]) == 0
        row, groups = rows[key], status["progress"]["groupsTrained"]
        assert groups == jobs[key]["spec"]["algorithm"]["maxSteps"] * BATCH
        assert (row["status"], row["step"], row["gpus"]) == ("Complete", f"{run.step}/{run.step}", "0")
        hours = told / 3600
        assert (row["gpuHours"], row["groupsPerGpuHour"]) == (f"{hours:.1f}", f"{groups / hours:.0f}")
        assert row["wasted"] == f"{wasted_share(run.fates):.1%}"
    preempted = {
        (obj["metadata"]["namespace"], obj["metadata"]["name"])
        for _, obj, _ in versions
        if obj["kind"] == "Workload" and kueue.holds(obj, "Evicted")
    }
    with capsys.disabled():
        took = versions[-1][2] - versions[0][2]
        total = sum(one.seconds for one in counted.values())
        print(
            f"\nseed {SEED}: {len(jobs)} jobs, {len(removed)} deleted, {len(preempted)} evicted, {took:.0f} s;", end=" "
        )
        print(f"{ledger.looks} moments, at most {ledger.most} of {ledger.quota} GPUs; {total:.0f} GPU-s,", end=" ")
        print(f"usage off by {late:+.0f} in all and ≤ {off:.2f} s a GPU that came or went (bound {LATE_S:g})")


def random_job(dice: random.Random, namespace: str, name: str, classes: str) -> Object:
    """Of one to twenty GPUs, with or without servers on GPUs, some of them elastic."""
    trainer, servers = dice.choice([1, 2, 4, 8, 16]), dice.choice([0, 0, 1, 2, 4])
    steps, fleet, pools = dice.randrange(40, 120), {}, {}
    if servers > 1 and dice.random() < 0.6:
        fleet = {"elastic": {"minReplicas": 1, "maxReplicas": servers, "windowSeconds": 10}}
        steps, pools = 250, dice.choice([{}, {"podTemplate": {"surge": {"nodeSelector": {FAKE_NODE: "true"}}}}])
    return on_gpus(
        namespace, name, trainer, servers=servers, priority=f"{dice.choice(['low', 'low', 'high'])}-{classes}",
        generation=fleet, algorithm={"maxSteps": steps, "maxStaleness": 2}, **pools,
    )  # fmt: skip


def over_by(admin: Client, key: tuple[str, str]) -> bool:
    return any(condition(read(admin, *key), kind).get("status") == "True" for kind in ("Complete", "Failed"))


def follow_fleets(admin: Client, pods: ScriptedPods, namespaces: tuple[str, ...]) -> None:
    """Each controller says as many servers as its job has."""
    for namespace in namespaces:
        counts: dict[str, int] = {}
        for pod in admin.list("v1", "Pod", namespace, "areal.dev/role=generation"):
            name = pod["metadata"]["labels"]["areal.dev/rljob"]
            counts[name] = counts.get(name, 0) + (pod["status"]["phase"] == "Running")
        for name, count in counts.items():
            pods.run(namespace, name).servers = max(1, count)
