"""Sends versions to servers by a process group: rank 0 of a gloo or NCCL broadcast, in buckets.

The volume stays the truth: only a version that is sealed there is sent, and whatever goes wrong here, servers read it
from there. Owns the epoch, which is one membership of the group: it lasts over versions, ends with the first fault
or change of servers, and is never used again. Every phase (join, offer, ready, broadcast, received) has a deadline and
names the server that misses it. Works on the publishing thread; never raises what servers or the network did.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from areal.broadcast import ProcessGroup, join_group, rendezvous_server
from areal.observe.waits import WaitRegistry
from areal.v1 import weights_pb2 as wire
from areal.values.policy import PolicyId
from areal.weights.group import Bucket, buckets
from areal.weights.manifest import Manifest
from torch import Tensor

from areal_trainer.publish.members import JOIN, SLICE_S, MemberFault, Members

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a phase may take."""

    join: float = 60.0
    offer: float = 10.0
    ready: float = 120.0  # servers may still score the version before
    broadcast: float = 60.0  # one bucket; also when a rank that hangs is given up by the others
    received: float = 60.0


@dataclass(frozen=True)
class GroupOptions:
    """How a group is made. `address` is where servers reach this trainer."""

    address: str
    backend: str = "gloo"
    bucket_bytes: int = 512 << 20
    deadlines: Deadlines = field(default_factory=Deadlines)


@dataclass(frozen=True)
class _Epoch:
    orders: wire.GroupEpoch
    ranks: Mapping[str, int]  # server → its engine's ranks
    group: ProcessGroup
    store: Any  # kept: ranks meet at it


Seen = Callable[[str, float], None]
"""Told of each phase that ended and its seconds; of a fault as ("fault: <phase>", 0)."""


class GroupSender:
    """Rank 0 of the weight group. `offer` a version before it is announced, then `send` or `withdraw` it."""

    def __init__(
        self,
        members: Members,
        options: GroupOptions,
        waits: WaitRegistry,
        seen: Seen = lambda phase, seconds: None,
        at: Callable[[str], None] = lambda point: None,
    ) -> None:
        """`at` is told of the points `bucket <n>` before each broadcast."""
        self._members = members
        self._options = options
        self._waits = waits
        self._seen = seen
        self._at = at
        self._life = uuid.uuid4().hex[:8]
        self._number = 0
        self._epoch: _Epoch | None = None

    @property
    def group(self) -> str:
        """The name of the group that there is; empty when there is none."""
        return "" if self._epoch is None else str(self._epoch.orders.name)

    def offer(self, manifest: Manifest, digest: str) -> bool:
        """Tell the servers, in a group that all of them have joined, what will be sent; False: they read the volume."""
        able = {server: state.ranks for server, state in self._members.able().items()}
        try:
            if not able:
                self._end()
                return False
            if self._epoch is None or self._epoch.ranks != able or not self._joined(self._epoch):
                self._end()
                self._timed(JOIN, lambda: self._begin(able))
            self._timed("offer", lambda: self._tell(manifest.policy_id, digest))
        except MemberFault as fault:
            self._fault(fault)
            return False
        return True

    def send(self, manifest: Manifest, tensors: Mapping[str, Tensor]) -> bool:
        """Broadcast what was offered; False when that failed and the servers read the volume."""
        epoch, policy, limits = self._epoch, str(manifest.policy), self._options.deadlines
        assert epoch is not None
        name, servers = epoch.orders.name, list(epoch.ranks)
        try:
            self._timed(
                "ready",
                lambda: self._members.wait("ready", name, servers, lambda state: state.ready == policy, limits.ready),
            )
            self._timed("broadcast", lambda: self._broadcast(epoch, manifest, tensors))
            self._timed(
                "received",
                lambda: self._members.wait(
                    "received", name, servers, lambda state: state.received == policy, limits.received
                ),
            )
        except MemberFault as fault:
            self._fault(fault)
            return False
        self._members.order(wire.GroupOrders(epoch=epoch.orders))
        return True

    def withdraw(self) -> None:
        """What was offered isn't sent: the controller wants another version."""
        if self._epoch is not None:
            self._members.order(wire.GroupOrders(epoch=self._epoch.orders))

    def close(self) -> None:
        """Leave the group."""
        self._end()

    # ---- phases

    def _begin(self, able: Mapping[str, int]) -> None:
        """Make a group of the servers: all of them and this rank meet at a new store."""
        options, limits = self._options, self._options.deadlines
        self._number += 1
        try:
            store = rendezvous_server(limits.join)
        except RuntimeError as error:
            raise MemberFault(JOIN, f"no rendezvous store: {error}") from error
        offsets: dict[str, int] = {}
        size = 1
        for server, ranks in able.items():
            offsets[server], size = size, size + ranks
        orders = wire.GroupEpoch(
            name=f"areal-{self._life}-e{self._number}",
            master_address=options.address,
            master_port=store.port,
            world_size=size,
            backend=options.backend,
            rank_offsets=offsets,
        )
        self._members.order(wire.GroupOrders(epoch=orders))
        joining: Future[ProcessGroup] = Future()

        def join() -> None:
            try:
                joining.set_result(
                    join_group(
                        options.backend, "127.0.0.1", store.port, name=orders.name, rank=0, world_size=size,
                        timeout_s=max(limits.join, limits.broadcast),
                    )
                )  # fmt: skip
            except RuntimeError as error:
                joining.set_exception(error)

        threading.Thread(target=join, name="areal-join-group", daemon=True).start()
        try:
            self._members.wait(
                JOIN, orders.name, list(able), lambda state: state.joined == orders.name, limits.join,
                also=joining.done,
            )  # fmt: skip
            group = joining.result()
        except RuntimeError as error:
            raise MemberFault(JOIN, f"group {orders.name}: {error}") from error
        _log.info("weight group %s: %s", orders.name, ", ".join(able))
        self._epoch = _Epoch(orders, dict(able), group, store)

    def _joined(self, epoch: _Epoch) -> bool:
        states = self._members.able()
        return all(state.joined == epoch.orders.name for state in states.values())

    def _tell(self, policy: PolicyId, digest: str) -> None:
        assert self._epoch is not None
        offer = wire.GroupOffer(policy_id=str(policy), manifest_digest=digest, bucket_bytes=self._options.bucket_bytes)
        self._members.order(wire.GroupOrders(epoch=self._epoch.orders, offer=offer))
        self._members.wait(
            "offer",
            self._epoch.orders.name,
            list(self._epoch.ranks),
            lambda state: state.offered == str(policy),
            self._options.deadlines.offer,
        )

    def _broadcast(self, epoch: _Epoch, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
        for number, bucket in enumerate(buckets(manifest.tensors, self._options.bucket_bytes)):
            self._at(f"bucket {number}")
            flat = _flat(bucket, tensors)
            if self._options.backend == "nccl":
                flat = flat.cuda()
            try:
                self._sent(epoch, epoch.group.broadcast(flat), number)
            except RuntimeError as error:
                self._members.check(epoch.orders.name, list(epoch.ranks), "broadcast")  # it may be known who
                raise MemberFault("broadcast", f"bucket {number} by {epoch.orders.name}: {error}") from error

    def _sent(self, epoch: _Epoch, work: Any, number: int) -> None:
        """Wait until a bucket is out, as long as every server is there."""
        deadline = time.monotonic() + self._options.deadlines.broadcast
        while not work.is_completed():
            with suppress(RuntimeError):  # the slice is over; how the work itself ended is asked below
                work.wait(timedelta(seconds=SLICE_S))
            self._members.check(epoch.orders.name, list(epoch.ranks), "broadcast")
            if time.monotonic() > deadline:
                late = f"bucket {number} by {epoch.orders.name} is not out after"
                raise MemberFault("broadcast", f"{late} {self._options.deadlines.broadcast:.0f} s")
        work.wait()

    # ---- ends

    def _fault(self, fault: MemberFault) -> None:
        _log.warning("weights go by the volume: %s", fault.message)
        self._seen(f"fault: {fault.phase}", 0.0)
        self._end()

    def _end(self) -> None:
        self._members.order(wire.GroupOrders())
        if self._epoch is not None:
            self._epoch.group.give_up()
            self._epoch = None

    def _timed(self, phase: str, work: Callable[[], None]) -> None:
        began = time.monotonic()
        with self._waits.waiting("weight group", f"phase {phase} of every generation server"):
            work()
        self._seen(phase, time.monotonic() - began)


def _flat(bucket: Bucket, tensors: Mapping[str, Tensor]) -> Tensor:
    """The bucket's bytes."""
    parts: Iterable[Tensor] = (tensors[piece.name].reshape(-1).view(torch.uint8) for piece in bucket.pieces)
    return torch.cat(list(parts))
