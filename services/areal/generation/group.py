"""One server's group with the trainer: joins with its engine, takes what is offered, leaves after a fault.

Owns the stream to the trainer and what this server tells on it. Promises that a fault of the group is only a
`GroupLoadFault` here, at most ten seconds after the last bucket: who gets one reads the version from the volume. An
engine that hangs in the group is killed, nothing else ends its broadcast. It never decides which version to hold.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from areal.errors import InfraError
from areal.generation.core import WantedVersion
from areal.generation.engine_client import GROUP_S, EngineClient, EngineRefusal
from areal.net.kept_stream import KeptStream, StreamLoss
from areal.v1 import weights_pb2 as wire
from areal.v1 import weights_pb2_grpc as rpc
from areal.weights.group import buckets
from areal.weights.manifest import Manifest

log = logging.getLogger(__name__)

BUCKET_S = 6.0  # the trainer gives a bucket up after five
LEAVE_S = 4.0  # then the engine is killed
SENDING_S = 30.0  # from "ready" to the first bucket: the trainer waits eight for the slowest


class GroupLoadFault(InfraError):
    """The group didn't bring the version. `mixed`: the engine may hold tensors of two versions, and is paused."""

    def __init__(self, message: str, *, mixed: bool) -> None:
        super().__init__(message, fix="the version is read from the volume instead")
        self.mixed = mixed


@dataclass(frozen=True)
class Seat:
    """Where the group is told of, and with whom."""

    address: str  # of the trainer's gRPC
    token: str
    server_id: str
    ranks: int  # of the engine


class GroupMember:
    """`run` it beside the agent. `stages`: the engine collects buckets beside the weights that it generates with."""

    def __init__(
        self,
        seat: Seat,
        engine: EngineClient,
        able: Callable[[], bool],
        kill: Callable[[], Awaitable[None]],
        *,
        stages: bool,
    ) -> None:
        """`kill` ends the engine, which is started again."""
        self._engine = engine
        self._able = able
        self._kill = kill
        self._stages = stages
        self._orders = wire.GroupOrders()
        self._ordered = asyncio.Event()  # for `run`
        self._news = asyncio.Event()  # for who waits for the engine
        self._state = wire.MemberState(server_id=seat.server_id, ranks=seat.ranks)
        self._stream: KeptStream[wire.MemberState, wire.GroupOrders] = KeptStream(
            seat.address,
            seat.token,
            method=lambda channel: rpc.WeightGroupStub(channel).Join,
            hello=lambda: [self._report()],
            report=self._report,
            on_message=self._heard,
            on_lost=self._lost,
            what="trainer",
        )

    async def run(self) -> None:
        """Be where the trainer says, until cancelled."""
        streaming = asyncio.create_task(self._stream.run(), name="weight group")
        try:
            while True:
                self._ordered.clear()
                await self._follow(self._orders.epoch)
                await self._ordered.wait()
        finally:
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)

    def offers(self, wanted: WantedVersion) -> bool:
        """Whether the trainer is about to send this version, and the engine is in the group."""
        offer, epoch, joined = self._orders.offer, self._orders.epoch.name, self._state.joined
        if offer.policy_id != str(wanted.policy):
            return False
        return bool(joined and joined == epoch and self._state.failed != epoch)

    async def decline(self, reason: str) -> None:
        """Declines an offer, which is then read from the volume: the trainer need not wait for this server."""
        await self._give_up(self._orders.epoch.name, reason)

    async def sending(self, wanted: WantedVersion) -> bool:
        """Wait until the offered version's first bucket is ready to leave; False when it is not sent to this server."""
        group, policy = self._state.joined, str(wanted.policy)
        self._tell(ready=policy)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SENDING_S):
                while self._sends(group, policy) and not self._orders.offer.sending:
                    self._news.clear()
                    await self._news.wait()
        offer = self._orders.offer
        if self._sends(group, policy) and offer.sending and offer.manifest_digest == wanted.digest:
            return True
        self._tell(ready="")
        return False

    async def receive(self, manifest: Manifest, pause: Callable[[], Awaitable[None]]) -> None:
        """Take the version that is being sent; on return the engine, which is paused, says that it holds it.

        `pause` interrupts generation. Raises GroupLoadFault.
        """
        group, policy, paused = self._state.joined, manifest.policy, False
        plan = buckets(manifest.tensors, self._orders.offer.bucket_bytes)
        try:
            if not self._stages:
                await pause()
                paused = True
            await self._engine.begin_update()
            for number, bucket in enumerate(plan):
                last = number == len(plan) - 1
                if last and not paused:
                    await pause()
                    paused = True
                work = self._engine.receive_bucket(group, bucket, policy if last else None)
                await self._while(work, lambda: self._sends(group, policy), BUCKET_S)
            await self._engine.end_update()
        except (EngineRefusal, InfraError) as error:
            await self._give_up(group, error.message)
            raise GroupLoadFault(f"{policy} did not come by the group: {error.message}", mixed=paused) from error
        self._tell(received=policy)

    def engine_changed(self) -> None:
        """The engine came up or went down: it is in no group."""
        self._tell(joined="")
        self._ordered.set()
        self._news.set()

    # ---- orders

    def _heard(self, orders: wire.GroupOrders) -> None:
        if orders == self._orders:
            return
        self._orders = orders
        self._ordered.set()
        self._news.set()
        self._tell(offered=orders.offer.policy_id)

    def _lost(self, lost: StreamLoss) -> None:
        """A trainer that is gone sends nothing."""
        self._heard(wire.GroupOrders())

    async def _follow(self, epoch: wire.GroupEpoch) -> None:
        """Join the group that is told, leave any other."""
        held = self._state.joined
        if held and held != epoch.name:
            self._state.joined = ""
            await self._leave(held)
        if not epoch.name or epoch.name in (self._state.joined, self._state.failed) or not self._able():
            return
        place = {
            "master_address": epoch.master_address,
            "master_port": epoch.master_port,
            "rank_offset": 1,
            "world_size": epoch.world_size,
            "group_name": epoch.name,
            "backend": epoch.backend,
        }
        try:
            await self._while(self._engine.join_group(place), lambda: self._orders.epoch.name == epoch.name, GROUP_S)
        except (EngineRefusal, InfraError) as error:
            await self._give_up(epoch.name, error.message)
            return
        self._tell(joined=epoch.name)

    def _sends(self, group: str, policy: str) -> bool:
        return self._orders.epoch.name == group and self._orders.offer.policy_id == policy and self._able()

    async def _while(self, work: Awaitable[None], holds: Callable[[], bool], deadline_s: float) -> None:
        """Wait for the engine's `work` as long as `holds`. Raises InfraError otherwise, and what `work` raises."""
        working = asyncio.ensure_future(work)
        try:
            async with asyncio.timeout(deadline_s):
                while not working.done():
                    self._news.clear()
                    if not holds():
                        raise InfraError("the trainer gave the group up")
                    news = asyncio.ensure_future(self._news.wait())
                    await asyncio.wait({working, news}, return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
        except TimeoutError:
            raise InfraError(f"nothing came for {deadline_s:.0f} s") from None
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        working.result()

    async def _give_up(self, group: str, reason: str) -> None:
        log.warning("out of the weight group %s: %s", group, reason)
        self._state.joined = ""
        self._tell(failed=group, reason=reason[:500], ready="")
        await self._leave(group)

    async def _leave(self, group: str) -> None:
        """An engine that doesn't answer waits for a peer that is gone."""
        try:
            async with asyncio.timeout(LEAVE_S):
                for step in (self._engine.end_update, lambda: self._engine.leave_group(group)):
                    with contextlib.suppress(EngineRefusal, InfraError):  # none was open; a lost engine is in none
                        await step()
        except TimeoutError:
            log.error("the engine hangs in the weight group %s: it is killed", group)
            await self._kill()

    def _report(self) -> wire.MemberState:
        self._state.able = self._able()
        return wire.MemberState.FromString(self._state.SerializeToString())

    def _tell(self, **changed: str) -> None:
        for name, value in changed.items():
            setattr(self._state, name, value)
        self._stream.wake()
