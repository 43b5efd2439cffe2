"""Root causes: of each fault the right one, of a healthy run none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.errors import Cause
from areal.observe.causes import why
from areal.observe.live import Diagnosis, Idle, IdleCause, Live, LiveRole, LiveWait
from support.job_run import ROOT

ROLES = tuple(
    LiveRole(name, "ready", pid=100 + n, doing="works")
    for n, name in enumerate(("redis", "reward-custom", "controller", "generation-0", "worker-0", "trainer"))
)
HEALTHY = Live(at=0.0, pid=99, pid_began=1.0, step=7, max_steps=160, policy="7.f1", roles=ROLES, alive=True)


def having(name: str, **fields: object) -> Live:
    """The healthy run with one role changed."""
    return replace(HEALTHY, roles=[replace(r, **fields) if r.name == name else r for r in ROLES])


def idle(cause: IdleCause, text: str, idle_s: float = 0.0) -> Live:
    """The healthy run, but for why it admits nothing."""
    return replace(HEALTHY, idle=Idle(cause, text), idle_s=idle_s)


WAITS = LiveWait("groups", "group 448 and more, for step 7", 41.0, 1800.0)
OTHER = LiveWait("teacher", "the teacher at http://t to score 16 sequences", 45.0, 420.0)
STUCK = LiveWait("user code", "compute_loss of hooks.py, at line 17 in inner", 9.0)
STORED = LiveWait("ledger", "16 samples stored", 6.0, 30.0)
QUIET = LiveWait("engine.health", "its engine to answer", 7.0, 24.0)
WAITS_NOW = replace(WAITS, age_s=9.0)
SCORES = LiveWait("reward.recipe", "23 items judged", 8.0, 120.0)
HUNG = replace(
    HEALTHY,
    roles=[
        replace(r, waits=[WAITS_NOW] if r.name == "trainer" else [SCORES, SCORES] if r.name == "reward-custom" else [])
        for r in ROLES
    ],
)
OLD = replace(
    HEALTHY, idle=Idle(IdleCause.GATE_CLOSED, "the gate is closed at version 3 with maxStaleness 2"), idle_s=30.0,
    roles=[
        replace(r, waits=[WAITS_NOW] if r.name == "trainer" else [], policy="3.f1" if "generation" in r.name else "")
        for r in ROLES
    ],
)  # fmt: skip
CASES: list[tuple[Live, str, str, str]] = [
    (replace(HEALTHY, ended=True, alive=False), "ended", "", "step 7 of 160"),
    (replace(HEALTHY, alive=False, age_s=300.0), "run-gone", "areal run", "for 5 min"),
    (replace(HEALTHY, age_s=14.0), "run-silent", "areal run", "pid 99"),
    (having("trainer", phase="failed", reason="ValueError: x", cause="bug"), "bug", "trainer", "ValueError: x"),
    (having("worker-0", phase="backing off", reason="signal 9", cause="role-killed"), "role-killed", "worker-0", "l 9"),
    (having("worker-0", phase="starting", reason="full", cause="disk-full"), "disk-full", "worker-0", "started again"),
    (having("worker-0", phase="starting", cause="role-killed", unready_s=1.0), "none", "", "nothing is wrong"),
    (replace(HEALTHY, ended=True, alive=False, cause=Diagnosis("stopped", "you stopped it")), "stopped", "", "you st"),
    (replace(HEALTHY, ended=True, disk_free=0, cause=Diagnosis("no-memory", "no")), "no-memory", "", "no"),
    (replace(HEALTHY, cause=Diagnosis("user-code", "it is inside")), "user-code", "", "it is inside"),
    (replace(HEALTHY, alive=False, cause=Diagnosis("user-code", "it is inside")), "run-gone", "areal run", "cut off"),
    (replace(HEALTHY, stalled="no server takes 3.f1"), "stalled", "controller", "no server takes 3.f1"),
    (having("generation-0", phase="starting", doing="loads"), "role-starts", "generation-0", "loads"),
    (having("generation-0", phase="starting", doing="no", unready_s=5.0), "role-starts", "generation-0", "for 5 s"),
    *((having(role.name, stopped=role.pid), "role-stopped", role.name, "it is stopped") for role in ROLES),
    (having("generation-0", stopped=777, silent_s=9.0), "role-stopped", "generation-0", "its process 777"),
    (replace(HEALTHY, disk_free=4096, age_s=14.0), "disk-full", "areal run", "4,096 bytes are left"),
    *((having(role.name, silent_s=9.0), "role-silent", role.name, "for 9 s") for role in ROLES),
    (idle(IdleCause.NO_WEIGHTS, "no weights are published yet: waiting", 6.0), "no-weights", "trainer", "no weights"),
    (idle(IdleCause.NO_SERVER, "no generation server is ready (1)", 6.0), "no-server", "generation-0", "ready (1)"),
    (idle(IdleCause.NO_WORKER, "no rollout worker is connected", 6.0), "no-worker", "worker-0", "no rollout worker"),
    (idle(IdleCause.BYTES_FULL, "the byte budget is 93% full: waiting", 6.0), "bytes-full", "controller", "93%"),
    (idle(IdleCause.LAST_EVALUATION, "the last evaluation is running"), "last-evaluation", "", "last"),
    (
        having("trainer", waits=[LiveWait("publish", "the version before", 400.0, 600.0)]),
        "overdue", "trainer", "gives up after 10 min",
    ),
    (having("trainer", waits=[OTHER]), "waits-for-model", "trainer", "and gives up after 7 min"),
    (having("trainer", waits=[replace(OTHER, age_s=9.0)]), "none", "", "nothing is wrong"),
    (having("trainer", waits=[STUCK]), "user-code", "trainer", "the user's compute_loss of hooks.py, at line 17"),
    (replace(idle(IdleCause.BYTES_FULL, "the budget is used up", 9.0), roles=having("trainer", waits=[STUCK]).roles),
     "user-code", "trainer", "for 9 s"),
    (having("trainer", waits=[replace(STUCK, age_s=2.0)]), "none", "", "nothing is wrong"),
    (having("trainer", waits=[WAITS]), "waits-for-groups", "trainer", "group 448"),
    (replace(having("trainer", waits=[WAITS]), batch_waits="step 7 waits for group 450, the rest is at worker-1"),
     "waits-for-groups", "trainer", "step 7 waits for group 450"),
    (HUNG, "user-code", "reward-custom", "2 calls wait for the user's reward, the oldest for 23 items judged, for 8 s"),
    (having("reward-custom", waits=[SCORES]), "none", "", "nothing is wrong"),  # slow, and nobody waits for it
    (OLD, "old-version", "generation-0", "it serves 3.f1 and has not taken 7.f1"),
    (replace(OLD, policy="3.f1"), "none", "", "nothing is wrong"),
    (replace(OLD, roles=[*OLD.roles, LiveRole("generation-1", "ready", policy="7.f1")]), "none", "", "nothing"),
    (replace(HEALTHY, alive=False, disk_free=4096), "disk-full", "areal run", "4,096 bytes are left"),
    (having("worker-0", waits=[STORED]), "store-silent", "redis", "worker-0 waits for 16 samples stored, for 6 s"),
    (having("worker-0", waits=[replace(STORED, age_s=2.0)]), "none", "", "nothing is wrong"),
    (having("generation-0", waits=[QUIET]), "engine-silent", "generation-0", "is started again after 24 s of this"),
    (having("generation-0", waits=[replace(QUIET, age_s=5.5)]), "none", "", "nothing is wrong"),
    (replace(HEALTHY, ended=True, alive=False, disk_free=4096), "disk-full", "areal run", "4,096 bytes are left"),
    (HEALTHY, "none", "", "at step 7 of 160"),
    (having("trainer", waits=[replace(WAITS, age_s=3.0)]), "none", "", "nothing is wrong"),
    (having("generation-0", phase="starting", doing="not ready", unready_s=1.0), "none", "", "nothing is wrong"),
    (having("worker-0", silent_s=1.5), "none", "", "nothing is wrong"),
    (idle(IdleCause.NO_SERVER, "no generation server is ready (1 not ready)", 2.0), "none", "", "nothing is wrong"),
    (idle(IdleCause.GATE_CLOSED, "the gate is closed at version 7"), "none", "", "nothing is wrong"),
]  # fmt: skip


@pytest.mark.parametrize(("live", "cause", "role", "words"), CASES, ids=[case[1] + case[2] for case in CASES])
def test_each_fault_has_its_cause(live: Live, cause: str, role: str, words: str):
    answer = why(live)
    assert (answer.cause, answer.role if role else "") == (cause, role)
    assert words in answer.sentence
    assert answer.fix or cause in ("none", "ended", "last-evaluation") or live.cause
    assert Cause(answer.cause) == answer.cause


def test_a_fix_names_the_logs_of_every_role_that_is_meant():
    second = (LiveRole("generation-1", "ready"), LiveRole("worker-7", "ready"))
    live = replace(
        HEALTHY,
        idle=Idle(IdleCause.NO_SERVER, "no generation server is ready (2 loading)"),
        idle_s=5.0,
        roles=(*ROLES, *second),
    )
    assert why(live).fix == "what is loaded or refused is said in logs/generation-0.log, logs/generation-1.log"
    live = replace(idle(IdleCause.NO_WORKER, "no rollout worker is connected", 5.0), roles=second)
    assert why(live).fix == "why none connects is said in logs/worker-7.log"


def test_a_chain_is_followed_to_who_holds_it_up():
    worker = LiveWait("generate", "a server that is young enough", 38.0)
    live = having("worker-0", waits=[worker])
    live = replace(live, roles=[replace(r, waits=[WAITS]) if r.name == "trainer" else r for r in live.roles])
    said = why(live).sentence
    assert said == (
        "trainer, pid 105: it waits for group 448 and more, for step 7 ← worker-0 waits for a server that is young "
        "enough, 38 s, for 41 s"
    )


def test_what_is_wrong_comes_before_what_follows_from_it():
    live = having("generation-0", silent_s=20.0)
    live = replace(live, idle=Idle(IdleCause.NO_SERVER, "no generation server is ready (1 silent)"), idle_s=9.0)
    assert why(live).role == "generation-0"


def test_a_sentence_says_only_what_is_known():
    assert Diagnosis("x", "it waits").sentence == "it waits"
    assert Diagnosis("x", "it waits", role="trainer").sentence == "trainer: it waits"
    assert Diagnosis("x", "it waits").named == "it waits [x]"
    assert Diagnosis("none", "nothing is wrong").named == "nothing is wrong"


def test_every_cause_has_a_line_in_the_docs():
    page = (ROOT / "docs" / "causes.md").read_text()
    assert [cause for cause in Cause if f"| `{cause}` |" not in page] == []
