"""Assembly of all that judges programs in one process: sandbox, toolchains, judge, dispatcher, self-test.

Owns the order in which they start and stop, and that nothing serves below the tier that was asked for.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from areal.errors import ArealError
from areal.observe.metrics import RoleMetrics
from areal.observe.pod_limits import pod_cores, pod_memory_bytes
from areal.spec.code_tiers import slots_of_cores

from areal_judge.judge.dispatch.dispatcher import JudgeDispatcher
from areal_judge.judge.dispatch.executor import Executor
from areal_judge.judge.dispatch.meters import Meters, Readiness, SelfTestFinding
from areal_judge.judge.dispatch.scheduler import Bounds, MemoryBudget
from areal_judge.judge.dispatch.values import LanguageOffer, Offer
from areal_judge.judge.drivers import DRIVERS
from areal_judge.judge.judge import Judge
from areal_judge.judge.languages.discovery import Toolchain, find_toolchains
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.table import LANGUAGES
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.values import Options, Status, StdioCase, StdioSuite, Submission
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.host.selftest import self_test
from areal_judge.sandbox.values import Ending, Limits, Powers, Tier

log = logging.getLogger(__name__)

_SAMPLE_S = 1.0
_MOST_ZYGOTES = 8  # each forks hundreds of cells a second
_RUNS_A_SLOT = 2  # split tests hold two at once
_ENDED_ITSELF = (Ending.EXITED.value, Ending.SIGNALED.value)
_TEST_LIMITS = Limits(wall_s=20.0, cpu_s=5.0)  # a busy machine is no broken one


@dataclass(frozen=True)
class StackSettings:
    """What to build."""

    min_tier: Tier = Tier.T2
    allow_unsafe: bool = False
    highest_tier: Tier = Tier.T4  # behave like a machine that offers no more
    slots: int = 0  # judgements at once; 0 is one a core and a few more
    languages: tuple[str, ...] = tuple(LANGUAGES)  # that must be looked for; Python always is
    bounds: Bounds = field(default_factory=Bounds)
    test_period_s: float = 60.0


@dataclass(frozen=True)
class CodeStack:
    """The parts that others use."""

    sandbox: Sandbox
    dispatcher: JudgeDispatcher
    readiness: Readiness


@contextlib.asynccontextmanager
async def code_stack(
    settings: StackSettings, metrics: RoleMetrics, changed: Callable[[bool], Awaitable[None]]
) -> AsyncIterator[CodeStack]:
    """Starts everything and tests it; afterwards nothing of it is left. `changed` hears each outcome of the self-test.

    Raises:
        ConfigError: the machine is below the tier; says what is missing.
        InfraError: the sandbox does not start.
    """
    async with contextlib.AsyncExitStack() as owned:
        cores = pod_cores()
        slots = settings.slots or slots_of_cores(cores)
        store, found = None, await asyncio.to_thread(_found, settings.languages)
        if len(settings.languages) > 1:
            store = PreparedFiles()
            owned.callback(store.close)
        config = SandboxConfig(
            min_tier=settings.min_tier,
            allow_unsafe=settings.allow_unsafe,
            highest_tier=settings.highest_tier,
            zygotes=min(_MOST_ZYGOTES, cores),
            drivers=DRIVERS,
            max_runs=_RUNS_A_SLOT * slots + 2,  # the self-test has its own
            readable=Toolchains.readable(found, store),
        )
        sandbox = Sandbox(config)
        owned.push_async_callback(sandbox.stop)
        await sandbox.start()
        toolchains = Toolchains(sandbox, store=store, found=found, unbounded_memory=settings.allow_unsafe)
        owned.push_async_callback(toolchains.close)
        offer = offer_of(sandbox.powers, toolchains.capabilities(), settings.min_tier)
        judge = Judge(sandbox, toolchains, attempts=1)  # the dispatcher tries again
        meters = Meters(metrics, offer.languages)
        dispatcher = JudgeDispatcher(
            judge,
            offer=offer,
            slots=slots,
            memory=MemoryBudget(pod_memory_bytes()),
            executor=Executor(sandbox, toolchains),
            bounds=settings.bounds,
            meters=meters,
        )
        owned.push_async_callback(dispatcher.close)

        async def tested(ready: bool) -> None:
            meters.tested(offer.tier, ready)
            dispatcher.refusing = readiness.words if readiness.breached else ""
            await changed(ready)

        readiness = Readiness(SelfTest(sandbox, judge), tested, period_s=settings.test_period_s)
        await readiness.check()  # a service that fails it is up, is not ready, and tests itself again soon
        for work in (readiness.keep(), _sampling(sandbox, dispatcher), _prepared(toolchains)):
            task = asyncio.create_task(work)
            task.add_done_callback(_complain)
            owned.push_async_callback(_ended, task)
        yield CodeStack(sandbox, dispatcher, readiness)


def offer_of(powers: Powers, toolchains: tuple[Toolchain, ...], min_tier: Tier) -> Offer:
    """What is told to callers, of what was found."""
    runtimes = tuple(
        LanguageOffer(each.language, each.version, each.digest, each.missing or each.refused) for each in toolchains
    )
    return Offer(powers, runtimes, min_tier)


def _found(languages: tuple[str, ...]) -> tuple[Toolchain, ...]:
    return tuple(each for each in find_toolchains() if each.language == "python" or each.language in languages)


async def _prepared(toolchains: Toolchains) -> None:
    """Makes what compilations share, while the service serves already. What fails is tried again at its first use."""
    try:
        await toolchains.prepare()
    except ArealError as error:
        log.warning("a toolchain could not be prepared: %s", error.message)


async def _sampling(sandbox: Sandbox, dispatcher: JudgeDispatcher) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SAMPLE_S)
        counters = sandbox.counters()
        counts = {name: float(getattr(counters, name)) for name in ("runs", "zygote_restarts", "spare_misses")}
        kills = {why.value: float(counters.endings.get(why.value, 0)) for why in Ending if why not in _ENDED_ITSELF}
        dispatcher.meters.sample(dispatcher.scheduler, loop.time(), counts, kills)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("something that the reward service does beside judging failed", exc_info=error)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class SelfTest:
    """Self-test of judge and sandbox: each call runs a right program, a wrong one, and ones that attack.

    Goes past the queue: a full service is a healthy one. The attacks try what no tier from T2 upwards allows; a tier
    below promises nothing, and only judging is tested there. What costs a second or much memory is tried once.
    """

    def __init__(self, sandbox: Sandbox, judge: Judge, *, service_pid: int | None = None) -> None:
        self._sandbox = sandbox
        self._judge = judge
        self._pid = os.getpid() if service_pid is None else service_pid
        self._first = True

    async def __call__(self) -> SelfTestFinding:
        expected = secrets.token_hex(8)
        suite = StdioSuite((StdioCase(expected, expected),), limits=_TEST_LIMITS)
        options = Options(min_tier=Tier.T0)
        for source, status in (("print(input())", Status.PASSED), ("print(input()[:-1])", Status.WRONG_ANSWER)):
            judgement = await self._judge.judge(Submission(source), suite, options)
            if judgement.status is not status:
                why = judgement.message or "; ".join(case.detail for case in judgement.cases if case.detail)
                return SelfTestFinding(
                    False, f"a program that is {status.value} was judged {judgement.status.value}: {why}"
                )
        tier = self._sandbox.powers.tier
        if tier < Tier.T2:
            return SelfTestFinding(True, f"judging is right; {tier.name} promises nothing else")
        probes = await self_test(self._sandbox, thorough=self._first, service_pid=self._pid)
        if failed := [probe for probe in probes if not probe.held]:
            words = "; ".join(f"{probe.name}: {probe.detail}" for probe in failed)
            return SelfTestFinding(
                False, f"the sandbox didn't hold: {words}"[:300], breach=any("won" in one.detail for one in failed)
            )
        self._first = False
        held = sum(probe.name.endswith("attack") for probe in probes)
        return SelfTestFinding(True, f"judging is right, and {tier.name} held {held} attacks")
