"""Taking a version: check its bytes, interrupt, load, continue, and let the canary decide.

A version comes from the volume, or straight from the trainer by a process group; whatever goes wrong with the group,
the volume has it. Both are proven the same way against the same manifest.

Promises that generation is continued whatever happens, that no token of a version leaves this agent before the
version's canary passed (`Requests` keeps answers back until then), and that a version which fails its canary is
replaced by the last good one when that is still on disk. Starts meanwhile wait for the swap lock.

The canary is scored after `continue`, because stock SGLang answers nothing while it is paused.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from areal.cards import ServerPhase
from areal.errors import ArealError, DataError, InfraError
from areal.generation.core import FIRST_RETRY_S, AgentCore, WantedVersion
from areal.generation.engine_client import KV_CACHE, WEIGHTS, Adapters, EngineClient, EngineMemory, EngineRefusal
from areal.generation.group import GroupLoadFault, GroupMember
from areal.generation.requests import Requests
from areal.observe.metrics import RoleMetrics
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import WaitRegistry
from areal.values.policy import NOTHING
from areal.weights.manifest import Manifest, difference, problem
from areal.weights.stage import VOLUME, StagedVersion, StagingArea

log = logging.getLogger(__name__)

GROUP = "group"  # how a version came: label of the weight metrics
_REASONS = ("canary", "checksum", "digest", "engine", GROUP, "load", VOLUME)  # why one is refused


class Refusal(ArealError):
    """A version was not taken. `cause_label` is one of a few words, for metrics."""

    def __init__(self, cause_label: str, message: str) -> None:
        super().__init__(message)
        self.cause_label = cause_label


class Swapper:
    """Takes versions, one at a time. `lock` is held from the interruption until the canary's verdict."""

    def __init__(
        self,
        core: AgentCore,
        engine: EngineClient,
        requests: Requests,
        metrics: RoleMetrics,
        waits: WaitRegistry,
        lock: asyncio.Lock,
        stage: StagingArea,
        adapters: Adapters | None = None,
        group: GroupMember | None = None,
        memory: EngineMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
        traces: Traces = NO_TRACES,
    ) -> None:
        """`adapters` are those of an engine that takes versions as LoRA adapters, beside each other. `group` may bring
        versions.
        """
        self._core = core
        self._engine = engine
        self._requests = requests
        self._metrics = metrics
        self._waits = waits
        self._lock = lock
        self._stage_room = stage
        self._adapters = adapters
        self._group = group
        self._memory = memory or EngineMemory(engine)
        self._clock = clock
        self._traces = traces
        for reason in _REASONS:
            metrics.counter("areal_weight_sync_failures_total", reason=reason)  # a rate needs the 0 before the first

    async def take(self, wanted: WantedVersion) -> bool:
        """Try to hold `wanted`; False when it was refused, which is recorded with its reason."""
        began = self._clock()
        try:
            if self._group is not None and self._group.offers(wanted):
                manifest = await self._from_group(self._group, wanted)
                if manifest is not None:
                    self._taken(wanted, manifest, began, GROUP)
                    return True
            staged = await self._stage(wanted)
            if self._adapters is not None:
                return await self._add(self._adapters, wanted, staged)
            with self._waits.waiting("swap", f"the engine to load {wanted.policy}", deadline_s=600):
                async with self._lock:
                    await self._swap(wanted, staged)
        except Refusal as refusal:
            self._trace(wanted, began, error=refusal.message)
            self._refuse(wanted, refusal)
            return False
        except EngineRefusal as error:
            self._trace(wanted, began, error=error.message)
            self._refuse(wanted, Refusal("load", error.message))
            return False
        except InfraError as error:  # the engine's fault, not the version's
            self._metrics.counter("areal_weight_sync_failures_total", reason="engine").inc()
            log.warning("%s was not taken: %s", wanted.policy, error.message)
            await asyncio.sleep(FIRST_RETRY_S)
            return False
        self._taken(wanted, staged.manifest, began, self._stage_room.way(staged))
        return True

    def _taken(self, wanted: WantedVersion, manifest: Manifest, began: float, mode: str) -> None:
        took = self._clock() - began
        exemplar = self._trace(wanted, began, mode)
        self._metrics.histogram("areal_weight_sync_duration_seconds", mode=mode, stage="load").observe(took, exemplar)
        self._metrics.gauge("areal_weight_bytes").set(manifest.stored_bytes)
        log.info(
            "holds %s, which came by the %s, after %.3f s", wanted.policy, mode, took,
            extra={"policy_id": str(wanted.policy)},
        )  # fmt: skip

    async def _from_group(self, group: GroupMember, wanted: WantedVersion) -> Manifest | None:
        """Take what the trainer sends; None when that failed and left the engine as it was."""
        try:
            manifest = await asyncio.to_thread(self._stage_room.manifest, wanted.path, wanted.digest)
        except (DataError, InfraError) as error:
            await group.decline(error.message)
            return None  # the volume's way says the same
        if manifest.canary is None or manifest.policy_id != wanted.policy:
            await group.decline(f"the manifest of {wanted.policy} can't be proven")
            return None
        with self._waits.waiting("swap", f"the trainer to send {wanted.policy}", deadline_s=600):
            if not await group.sending(wanted):
                return None
            async with AsyncExitStack() as interruption:

                async def interrupt() -> None:
                    await interruption.enter_async_context(self._lock)
                    await self._interrupt()

                try:
                    await group.receive(manifest, interrupt)
                except GroupLoadFault as fault:
                    self._metrics.counter("areal_weight_sync_failures_total", reason=GROUP).inc()
                    log.warning("%s", fault.message)
                    return await self._instead(wanted) if fault.mixed else None
                self._core.loaded(wanted.policy)
                await self._engine.resume()
                await self._proven(wanted, manifest)
        return manifest

    async def _instead(self, wanted: WantedVersion) -> Manifest:
        """Read from the volume what the group brought a part of, before a token is made."""
        self._core.loaded(NOTHING)
        try:
            staged = await self._stage(wanted)
            await self._load(wanted, staged)
        except (Refusal, InfraError):
            await self._fall_back(wanted)
            raise
        await self._proven(wanted, staged.manifest)
        return staged.manifest

    async def _interrupt(self) -> None:
        await self._requests.hand_back()
        await self._engine.pause("retract")
        self._requests.interrupted()

    def _trace(self, wanted: WantedVersion, began: float, mode: str = "", error: str = "") -> dict[str, str] | None:
        """The span of this server's swap, below the publication of the version; answers what ties a figure to it."""
        if not self._traces.on:
            return None
        parent = self._traces.policy(str(wanted.policy))
        self._traces.emit(
            "swap",
            self._traces.wall(began),
            self._traces.wall(self._clock()),
            parent=parent,
            error=error,
            attributes={"policy": str(wanted.policy), "mode": mode},
        )
        return {"trace_id": parent.trace_id}

    async def _add(self, adapters: Adapters, wanted: WantedVersion, staged: StagedVersion) -> bool:
        """Take a version without an interruption: what runs goes on with its adapter, what starts gets the new one."""
        began = self._clock()
        with self._waits.waiting("swap", f"the engine to load {wanted.policy}", deadline_s=600):
            await adapters.load(str(wanted.policy), staged.path)
            try:
                await self._score(wanted, staged.manifest, adapter=str(wanted.policy))
            except (Refusal, InfraError):
                await adapters.unload(str(wanted.policy))
                raise
        async with self._lock:
            self._core.accept(wanted)
            await self._requests.settle()
        self._taken(wanted, staged.manifest, began, self._stage_room.way(staged))
        return True

    async def sleep(self) -> None:
        """Interrupt what runs and give the engine's memory back; requests stay with it. Raises what went wrong."""
        async with self._lock:
            await self._requests.hand_back()
            self._requests.interrupted()
            await self._memory.release()

    async def wake(self) -> None:
        """Take memory again, with the newest version. Raises what went wrong: the engine then is to be started anew.

        Weights come before the cache: with both the old ones would have to fit, too.
        """
        core, memory = self._core, self._memory
        async with self._lock:
            loaded = await self._reload() if WEIGHTS in memory.released else None
            await memory.resume(KV_CACHE)
            await self._engine.resume()
            core.phase = ServerPhase.AWAKE
            if loaded is None:
                await self._requests.settle()
                return
            try:
                await self._proven(*loaded)
            except Refusal as refusal:
                self._refuse(loaded[0], refusal)

    async def _reload(self) -> tuple[WantedVersion, Manifest]:
        """Load the newest version that can be loaded into memory that was taken again."""
        core = self._core
        while (wanted := core.newest) is not None:
            try:
                staged = await self._stage(wanted)
                await self._memory.resume(WEIGHTS)
                await self._engine.update_from_disk(str(staged.path), str(wanted.policy))
            except (Refusal, EngineRefusal) as error:
                self._refuse(wanted, error if isinstance(error, Refusal) else Refusal("load", error.message))
                if wanted == core.accepted:
                    break
                continue
            core.loaded(wanted.policy)
            return wanted, staged.manifest
        raise InfraError("no version is left that the engine could wake with")

    async def prove(self, held: WantedVersion) -> bool:
        """After an engine started from `held`: score its canary."""
        try:
            staged = await self._stage(held)
            async with self._lock:
                if self._core.phase is not ServerPhase.AWAKE:
                    return False  # it is proven when it wakes
                await self._judge(held, staged.manifest)
                await self._requests.settle()
        except Refusal as refusal:
            self._refuse(held, refusal)
            return False
        except InfraError as error:
            log.warning("the canary of %s was not scored: %s", held.policy, error.message)
            return False
        return True

    def _refuse(self, wanted: WantedVersion, refusal: Refusal) -> None:
        refused = self._core.refuse(wanted.policy, refusal.message, self._clock())
        self._metrics.counter("areal_weight_sync_failures_total", reason=refusal.cause_label).inc()
        log.error(
            "refused %s (try %d): %s", wanted.policy, refused.tries, refusal.message,
            extra={"policy_id": str(wanted.policy)},
        )  # fmt: skip

    async def _stage(self, wanted: WantedVersion) -> StagedVersion:
        """Read and check every byte while generation goes on; the engine then reads what is in memory already."""
        try:
            staged = await asyncio.to_thread(self._stage_room.prepare, wanted.path, wanted.digest)
            if staged.manifest.policy_id != wanted.policy:
                raise DataError(f"the manifest at {wanted.path} is of {staged.manifest.policy}, not of {wanted.policy}")
        except DataError as error:
            raise Refusal("checksum", error.message) from error
        except InfraError as error:
            raise Refusal("volume", error.message) from error
        if staged.manifest.canary is None:
            raise Refusal("canary", f"{wanted.policy} has no canary: nothing would prove that it was loaded right")
        return staged

    async def _swap(self, wanted: WantedVersion, staged: StagedVersion) -> None:
        try:
            await self._load(wanted, staged)
        except (Refusal, InfraError):
            if self._core.held == wanted.policy:  # the engine holds what is not proven
                await self._fall_back(wanted)
            raise
        await self._proven(wanted, staged.manifest)

    async def _proven(self, wanted: WantedVersion, manifest: Manifest) -> None:
        """Proves by the canary that the engine holds `wanted`, or rolls back to what was good."""
        try:
            await self._judge(wanted, manifest)
        except (Refusal, InfraError):
            await self._fall_back(wanted)
            raise
        await self._requests.settle()

    async def _load(self, wanted: WantedVersion, staged: StagedVersion) -> None:
        """Interrupt, load, continue. After an error the engine is asked what it holds."""
        try:
            await self._interrupt()
            try:
                await self._engine.update_from_disk(str(staged.path), str(wanted.policy))
                self._core.loaded(wanted.policy)
            finally:
                await self._engine.resume()
        except EngineRefusal as error:
            if await self._engine.weight_version() == str(wanted.policy):
                self._core.loaded(wanted.policy)
            raise Refusal("load", error.message) from error

    async def _compare(self, wanted: WantedVersion, manifest: Manifest) -> None:
        """Compares the engine's checksums with the manifest's: neighbours pass each other's canary."""
        says = await self._engine.weight_version()
        if says != str(wanted.policy):
            raise Refusal("digest", f"the engine says that it serves {says}, not {wanted.policy}")
        found = await self._engine.checksums()
        if found is None:
            return
        expected = {**manifest.frozen, **{name: entry.xxh3 for name, entry in manifest.tensors.items()}}
        for name, checksum in found.items():
            if name not in expected or checksum not in ("", expected[name]):  # "": the engine rounded it
                raise Refusal("digest", f"tensor {name!r} in the engine is not the one of {wanted.policy}")
        if missing := manifest.tensors.keys() - found.keys():
            raise Refusal("digest", f"tensor {min(missing)!r} of {wanted.policy} is not in the engine")

    async def _judge(self, wanted: WantedVersion, manifest: Manifest) -> None:
        """Compare what the engine says of its weights and the canary with what the trainer says."""
        await self._compare(wanted, manifest)
        await self._score(wanted, manifest)
        self._core.accept(wanted)

    async def _score(self, wanted: WantedVersion, manifest: Manifest, adapter: str | None = None) -> None:
        """Compare the engine's log-probabilities of the canary tokens with the trainer's."""
        canary = manifest.canary
        assert canary is not None
        try:
            scored = await self._engine.score(canary.token_ids, str(wanted.policy), adapter)
        except EngineRefusal as error:
            raise Refusal("canary", f"the canary can't be scored: {error.message}") from error
        found = difference(scored, canary.logprobs[1:])
        if (reason := problem(canary, found)) is not None:
            raise Refusal("canary", f"canary of {wanted.policy}: {reason}")
        log.info("canary of %s passed: mean %.3g, worst %.3g", wanted.policy, found.mean, found.worst)

    async def _fall_back(self, failed: WantedVersion) -> None:
        """Back to the last good version; without one the server stays unready, with what failed."""
        await self._requests.discard()
        good = self._core.accepted
        if good is None or good.policy == failed.policy or not good.path.is_dir():
            log.error("%s failed and no good version is left: unready", failed.policy)
            return
        try:
            staged = await self._stage(good)
            await self._load(good, staged)
            await self._judge(good, staged.manifest)
            log.warning("back at %s after %s failed", good.policy, failed.policy, extra={"policy_id": str(good.policy)})
        except (Refusal, InfraError) as error:
            log.error("can't go back to %s: %s", good.policy, error.message)
