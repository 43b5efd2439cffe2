"""Root causes of a run that waits: an ordered table, of which the first that fits is the answer. Pure.

The order is from what holds up everything to what is normal: a run that is gone, a role that is down, a role that does
not answer, what the controller says of itself, and at last the wait that every asynchronous run has now and then.
"""

from collections.abc import Callable

from areal.errors import Cause
from areal.observe.live import Diagnosis, IdleCause, Live, LiveRole, LiveWait, time_span
from areal.observe.waits import ENGINE_HEALTH, SERVED_TEACHER
from areal.observe.waits import WAIT as USER_CODE

NO_NEWS_S = 10.0  # `areal run` writes once a second; a loaded machine is late
SILENT_S = 7.0  # a role is asked once a second and has one second to answer; on a loaded machine it misses a few
DISK_FULL = 4 << 20  # bytes: less than one record of a journal and one version of a tiny model
IDLE_S = 4.0  # a server that swaps weights is not ready for a moment
USER_CODE_S = 7.0  # a loss or advantages of one micro-batch take less than a second
ENGINE_S = 6.5  # an agent waits five seconds for an answer, and asks again a second later
STORE_S = 4.0  # of one command or pipeline, which takes milliseconds
OLD_VERSION_S = 7.0  # of waiting for groups; a swap of a small model takes less than a second
LONG_WAIT_S = 30.0  # a wait for groups that is longer than a step of most jobs

_RECIPE = "reward.recipe"  # waits of the reward service for the recipe's function
_LEDGER = "ledger"  # waits for an answer of Redis


def why(live: Live) -> Diagnosis:
    """The cause that `areal run` found last, while there is news of it and after its end; else the first that fits."""
    return next(answer for cause in CAUSES if (answer := cause(live)) is not None)


def _ended(live: Live) -> Diagnosis | None:
    if not live.ended:
        return None
    return live.cause or Diagnosis(Cause.ENDED, f"the run has ended at step {live.step} of {live.max_steps}")


def _told(live: Live) -> Diagnosis | None:
    return live.cause


def _gone(live: Live) -> Diagnosis | None:
    if live.alive:
        return None
    text = f"the run was cut off at step {live.step} of {live.max_steps}: its process is gone"
    fix = f"go on from its last checkpoint with `{live.resume}`"
    return Diagnosis(Cause.RUN_GONE, text, fix, "areal run", live.pid, live.age_s)


def _frozen(live: Live) -> Diagnosis | None:
    if live.age_s < NO_NEWS_S:
        return None
    fix = f"it is stopped, blocked or can't write its directory: `kill -CONT {live.pid}`, and look at the disk"
    return Diagnosis(Cause.RUN_SILENT, "it reports nothing", fix, "areal run", live.pid, live.age_s)


def _disk(live: Live) -> Diagnosis | None:
    if live.disk_free is None or live.disk_free >= DISK_FULL or (live.ended and live.cause is not None):
        return None
    place = f" at {live.place}" if live.place else ""
    text = f"the disk of its directory is full: {live.disk_free:,} bytes are left{place}"
    fix = "make room: the run goes on by itself" if live.alive else f"make room, then `{live.resume}`"
    return Diagnosis(Cause.DISK_FULL, text, fix, "areal run", live.pid)


def _process_stopped(live: Live) -> Diagnosis | None:
    for role in live.roles:
        if role.stopped:
            whose = "it" if role.stopped == role.pid else f"its process {role.stopped}"
            text = f"{whose} is stopped, by SIGSTOP or a debugger"
            return Diagnosis(
                Cause.ROLE_STOPPED, text, f"kill -CONT {role.stopped}", role.name, role.pid, role.silent_s or None
            )
    return None


def _down(live: Live) -> Diagnosis | None:
    for phase, then in (("failed", "is not started again"), ("backing off", "is started again soon")):
        for role in live.roles:
            if role.phase == phase:
                return _died(role, then)
    return None


def _died(role: LiveRole, then: str) -> Diagnosis:
    """The last end of a role, by the cause that its error had."""
    fix = role.fix or f"its last words are in logs/{role.name}.log"
    text = f"it ended ({role.reason or 'no reason is known'}), and {then}"
    return Diagnosis(role.cause or Cause.ROLE_ENDED, text, fix, role.name, role.pid)


def _stalled(live: Live) -> Diagnosis | None:
    if not live.stalled:
        return None
    return Diagnosis(Cause.STALLED, live.stalled, "the run ends by itself after a minute of this", "controller")


def _starting(live: Live) -> Diagnosis | None:
    for role in live.roles:
        swaps = role.unready_s is not None and role.unready_s < IDLE_S
        if role.phase == "starting" and role.cause and role.unready_s is None:
            return _died(role, f"is started again ({role.doing or 'it is starting'})")
        if role.phase == "starting" and not swaps:
            text = role.doing or "it is starting"
            fix = f"a model takes its time to load; logs/{role.name}.log says how far it is"
            oldest = max((wait.age_s for wait in role.waits), default=None)
            since_s = role.unready_s if role.unready_s is not None else oldest
            return Diagnosis(Cause.ROLE_STARTS, text, fix, role.name, role.pid, since_s)
    return None


def _silent(live: Live) -> Diagnosis | None:
    quiet = [role for role in live.roles if role.silent_s >= SILENT_S]
    if not quiet:
        return None
    role = max(quiet, key=lambda one: one.silent_s)
    fix = f"its event loop is blocked: its stacks are at the end of logs/{role.name}.log; ended, it is started again"
    return Diagnosis(Cause.ROLE_SILENT, "it does not answer", fix, role.name, role.pid, role.silent_s)


_IDLE = {  # cause → fix, the kind of role that holds it up
    IdleCause.NO_WEIGHTS: ("the trainer publishes its start model first; see its log", "trainer"),
    IdleCause.NO_SERVER: ("what is loaded or refused is said in {}", "generation"),
    IdleCause.NO_WORKER: ("why none connects is said in {}", "worker"),
    IdleCause.UNTRAINED_GROUPS: ("mend the row or the recipe that it names; when it lasts, the run ends", "controller"),
    IdleCause.BYTES_FULL: ("raise replay.budgetBytes, or lower checkpoint.intervalSteps", "controller"),
}


def _not_admitting(live: Live) -> Diagnosis | None:
    if live.idle is None or live.idle.cause not in _IDLE or live.idle_s < IDLE_S:
        return None
    form, kind = _IDLE[live.idle.cause]
    holder = next((role for role in live.roles if role.name.startswith(kind)), None)
    name, pid = (holder.name, holder.pid) if holder is not None else (kind, 0)
    since_s = max(live.idle_s, _trainers_wait(live))
    return Diagnosis(Cause(live.idle.cause), live.idle.text, form.format(_logs(live, kind)), name, pid, since_s)


def _evaluating(live: Live) -> Diagnosis | None:
    if live.idle is None or live.idle.cause is not IdleCause.LAST_EVALUATION:
        return None
    return Diagnosis(Cause(live.idle.cause), live.idle.text, "", "controller", _pid(live, "controller"))


def _user_code(live: Live) -> Diagnosis | None:
    """A user's function that does not return; its role answers all the while."""
    for role in live.roles:
        if (wait := _wait(role, USER_CODE)) is not None and wait.age_s >= USER_CODE_S:
            text = f"it is inside the user's {wait.waits_for}"
            fix = (
                "that call has not returned: a lock, a socket or a loop without an end? "
                f"After two minutes the stacks of all threads are in logs/{role.name}.log"
            )
            return Diagnosis(Cause.USER_CODE, text, fix, role.name, role.pid, wait.age_s)
    return None


def _served_teacher(live: Live) -> Diagnosis | None:
    """A teacher behind an address that takes long: long before the deadline, which is for the longest pass."""
    trainer = _role(live, "trainer")
    wait = _wait(trainer, SERVED_TEACHER)
    if trainer is None or wait is None or wait.age_s < LONG_WAIT_S:
        return None
    text = f"it waits for {wait.waits_for}, and gives up after {time_span(wait.deadline_s)}"
    fix = "is that a long pass, or is who makes it stuck? A served model has logs where it is served"
    return Diagnosis(Cause.WAITS_FOR_MODEL, text, fix, trainer.name, trainer.pid, wait.age_s)


def _reward(live: Live) -> Diagnosis | None:
    """The recipe's reward that does not return, and holds up the trainer: it may be slow while there is enough."""
    if _trainers_wait(live) < USER_CODE_S:
        return None
    for role in live.roles:
        inside = [wait for wait in role.waits if wait.name == _RECIPE and wait.age_s >= USER_CODE_S]
        if inside:
            oldest = max(inside, key=lambda wait: wait.age_s)
            text = f"{len(inside)} calls wait for the user's reward, the oldest for {oldest.waits_for}"
            fix = (
                "a lock, a socket or a loop without an end? Each item is cut off after reward.deadlineSeconds and "
                f"counts as a fault; logs/{role.name}.log says which"
            )
            return Diagnosis(Cause.USER_CODE, text, fix, role.name, role.pid, oldest.age_s)
    return None


def _old_version(live: Live) -> Diagnosis | None:
    """No server took the newest version, and the gate admits nothing more for the one that they hold."""
    since_s = _trainers_wait(live)
    servers = [role for role in live.roles if role.name.startswith("generation") and role.policy]
    behind = [role for role in servers if role.policy != live.policy]
    closed = live.idle is not None and live.idle.cause is IdleCause.GATE_CLOSED
    if since_s < OLD_VERSION_S or not live.policy or not closed or not behind or len(behind) < len(servers):
        return None
    text = f"it serves {behind[0].policy} and has not taken {live.policy}, and the trainer waits for groups of it"
    fix = f"a large model takes its time to load; that it was refused, and why, is said in {_logs(live, 'generation')}"
    return Diagnosis(Cause.OLD_VERSION, text, fix, behind[0].name, behind[0].pid, since_s)


def _engine(live: Live) -> Diagnosis | None:
    """An engine that its agent can't hear, long before the agent ends it."""
    for role in live.roles:
        if (wait := _wait(role, ENGINE_HEALTH)) is not None and wait.age_s >= ENGINE_S:
            text = f"its engine does not answer, and is started again after {time_span(wait.deadline_s)} of this"
            fix = f"is it blocked, or is a packet filter in between? See logs/{role.name}.log"
            return Diagnosis(Cause.ENGINE_SILENT, text, fix, role.name, role.pid, wait.age_s)
    return None


def _store(live: Live) -> Diagnosis | None:
    """Redis, which takes or gives nothing: it has no event loop of ours that could be asked."""
    late = [(wait, role) for role in live.roles for wait in role.waits if wait.name == _LEDGER]
    if not late:
        return None
    wait, role = max(late, key=lambda one: one[0].age_s)
    if wait.age_s < STORE_S:
        return None
    text = f"it does not answer: {role.name} waits for {wait.waits_for}"
    fix = "is its disk full, its machine out of memory, or a packet filter in between? See logs/redis.log"
    return Diagnosis(Cause.STORE_SILENT, text, fix, "redis", _pid(live, "redis"), wait.age_s)


def _overdue(live: Live) -> Diagnosis | None:
    """A wait beyond half of its deadline, the oldest first; the trainer's for groups has a cause of its own."""
    late = [
        (wait, role)
        for role in live.roles
        for wait in role.waits
        if wait.deadline_s and wait.age_s > wait.deadline_s / 2 and wait.name != "groups"
    ]
    if not late:
        return None
    wait, role = max(late, key=lambda one: one[0].age_s)
    text = f"it waits for {wait.waits_for}, and gives up after {time_span(wait.deadline_s)}"
    return Diagnosis(Cause.OVERDUE, text, f"logs/{role.name}.log says more", role.name, role.pid, wait.age_s)


def _groups(live: Live) -> Diagnosis | None:
    trainer = _role(live, "trainer")
    wait = _wait(trainer, "groups")
    if trainer is None or wait is None or wait.age_s < LONG_WAIT_S:
        return None
    holders = [(w, role) for role in live.roles if role.name.startswith("worker") for w in role.waits]
    chain = f"it waits for {wait.waits_for}"
    if live.batch_waits:
        chain += f" ← {live.batch_waits}"
    if holders:
        held, role = max(holders, key=lambda one: one[0].age_s)
        chain += f" ← {role.name} waits for {held.waits_for}, {time_span(held.age_s)}"
    elif live.idle:
        chain += f" ← {live.idle.text}"
    fix = "generation is slower than training: more servers, shorter answers, or a larger maxStaleness"
    return Diagnosis(Cause.WAITS_FOR_GROUPS, chain, fix, "trainer", trainer.pid, wait.age_s)


def _trains(live: Live) -> Diagnosis:
    trainer = _role(live, "trainer")
    doing = f" ({trainer.doing})" if trainer is not None and trainer.doing else ""
    return Diagnosis(Cause.NONE, f"nothing is wrong: it is at step {live.step} of {live.max_steps}{doing}")


CAUSES: tuple[Callable[[Live], Diagnosis | None], ...] = (
    _disk, _ended, _gone, _frozen, _told, _process_stopped, _down, _stalled, _starting, _silent, _store, _engine,
    _user_code, _reward, _old_version, _not_admitting, _served_teacher, _evaluating, _overdue, _groups, _trains,
)  # fmt: skip


def _role(live: Live, name: str) -> LiveRole | None:
    return next((role for role in live.roles if role.name == name), None)


def _wait(role: LiveRole | None, name: str) -> LiveWait | None:
    return next((wait for wait in role.waits if wait.name == name), None) if role is not None else None


def _logs(live: Live, kind: str) -> str:
    """The log files of all roles of a kind."""
    names = (role.name for role in live.roles if kind in (role.name, role.name.rpartition("-")[0]))
    return ", ".join(f"logs/{name}.log" for name in names)


def _pid(live: Live, name: str) -> int:
    role = _role(live, name)
    return role.pid if role is not None else 0


def _trainers_wait(live: Live) -> float:
    wait = _wait(_role(live, "trainer"), "groups")
    return wait.age_s if wait is not None else 0.0
