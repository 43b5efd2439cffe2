"""Sends versions to servers by process groups: a pair for each server, in buckets, by gloo or NCCL.

The volume stays the truth: only a version that is sealed there is sent, and whatever goes wrong here, that one server
reads it from there. A pair lasts over versions and ends with its first fault or its server; the next one has another
name. Every phase (join, offer, ready, bucket, received) has a deadline. Never raises what servers or the network did,
and never waits for a server that doesn't move longer than the deadline of one phase.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from areal.observe.waits import WaitRegistry
from areal.v1 import weights_pb2 as wire
from areal.values.policy import PolicyId
from areal.weights.group import buckets
from areal.weights.manifest import Manifest

from areal_trainer.engine.host_copy import Place
from areal_trainer.publish.sender import JOIN, MemberFault, Members, SenderProcess, SenderServer

_log = logging.getLogger(__name__)

_LOOK_S = 0.2  # between two looks at which servers there are
_AGAIN_S = 3.0  # after a fault, until that server gets another pair


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a phase of a pair may take. A server gives its engine up ten seconds after the last bucket."""

    join: float = 60.0
    offer: float = 3.0
    ready: float = 8.0  # a server that isn't by then, say because it scores the version before, reads the volume
    bucket: float = 5.0
    received: float = 8.0


@dataclass(frozen=True)
class GroupOptions:
    """How pairs are made. `address` is where servers reach this trainer; `devices` are this machine's for NCCL."""

    address: str
    backend: str = "gloo"
    devices: int = 1
    bucket_bytes: int = 512 << 20
    deadlines: Deadlines = field(default_factory=Deadlines)


Seen = Callable[[str, float], None]
"""Told of each phase that ended and its seconds; of a fault as ("fault: <phase>", 0)."""

At = Callable[[str], None]
"""Told of the points `<server> join`, `offer`, `ready`, `bucket <n>` and `received`."""


@dataclass(frozen=True)
class _Outgoing:
    """A version that is sealed."""

    policy: str
    digest: str
    buckets: list[list[Place]]


class ServerPair:
    """One server's group, from its making to its first fault. Works on a thread of its own."""

    def __init__(
        self,
        name: str,
        server: str,
        ranks: int,
        device: int,
        members: Members,
        senders: SenderServer,
        options: GroupOptions,
        seen: Seen,
        at: At,
    ) -> None:
        self.name = name
        self.ranks = ranks
        self.device = device
        self.joined = False
        self.over = False
        self._server = server
        self._members = members
        self._senders = senders
        self._options = options
        self._seen = seen
        self._at = at
        self._epoch = wire.GroupEpoch()
        self._sender: SenderProcess | None = None
        self._lock = threading.Lock()  # of `over`, the sender and `_works`
        self._works = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"areal-pair-{server}")
        self._thread.submit(self._whole, self._join)

    def propose(self, policy: str) -> None:
        """Tell the server what will be sent."""
        self._order(wire.GroupOffer(policy_id=policy, bucket_bytes=self._options.bucket_bytes))
        self._at(f"{self._server} offer")

    def heard(self, policy: str, within_s: float) -> bool:
        """Whether the server knows what was proposed; one that doesn't loses this pair."""
        return self._whole(lambda: self._wait("offer", lambda state: state.offered == policy, within_s))

    def withdraw(self) -> None:
        """What was proposed isn't sent."""
        self._order(None)

    def send(self, version: _Outgoing) -> Future[bool]:
        """Begin to send what was proposed; answers whether the server has it."""
        return self._thread.submit(self._whole, lambda: self._send(version))

    def lost(self) -> bool:
        """Whether the server is in another state than this pair, which has nothing to do: else it finds that itself,
        and tells of a fault.
        """
        if self._works:
            return False
        try:
            self._check("ready" if self.joined else JOIN)
        except MemberFault:
            return True
        return False

    def close(self) -> None:
        """Leave the server, and end the sender."""
        with self._lock:
            if self.over:
                return
            self.over = True
        self._members.order(self._server, wire.GroupOrders())
        if self._sender is not None:
            self._sender.kill()
        self._thread.submit(self._closed)  # its own thread may hear the sender now
        self._thread.shutdown(wait=False)

    def _closed(self) -> None:
        if self._sender is not None:
            self._sender.close()

    # ---- phases

    def _join(self) -> bool:
        options, limits = self._options, self._options.deadlines
        size = 1 + self.ranks
        device = f"cuda:{self.device}" if options.backend == "nccl" else "cpu"
        sender = self._senders.fork(device, limits.join)
        with self._lock:
            self._sender = sender
            if self.over:  # meanwhile
                sender.kill()
        sender.tell(begin={})
        port = sender.hear(limits.join, lambda: self._check(JOIN))["port"]
        sender.tell(join={"backend": options.backend, "name": self.name, "world_size": size, "timeout_s": limits.join})
        self._epoch = wire.GroupEpoch(
            name=self.name, master_address=options.address, master_port=port, world_size=size, backend=options.backend
        )
        self._order(None)
        self._at(f"{self._server} join")
        sender.hear(limits.join, lambda: self._check(JOIN))
        self._wait(JOIN, lambda state: state.joined == self.name, limits.join)
        self.joined = True
        _log.info("weight group %s: with %s", self.name, self._server)
        return True

    def _send(self, version: _Outgoing) -> bool:
        limits, sender, began = self._options.deadlines, self._sender, time.monotonic()
        if sender is None or self.over:
            return False
        sender.tell(prepare={"buckets": version.buckets})
        sender.hear(limits.join, lambda: self._check("ready"))  # the first time all memory is mapped
        self._at(f"{self._server} ready")
        try:
            self._wait("ready", lambda state: state.ready == version.policy, limits.ready)
        except MemberFault as fault:
            if not fault.late:
                raise
            self.withdraw()  # it is busy: nothing is wrong with the pair
            self._seen("fault: ready", 0.0)
            return False
        began = self._timed("ready", began)
        self._order(
            wire.GroupOffer(
                policy_id=version.policy,
                manifest_digest=version.digest,
                bucket_bytes=self._options.bucket_bytes,
                sending=True,
            )
        )
        for number in range(len(version.buckets)):
            self._at(f"{self._server} bucket {number}")
            sender.tell(send={"number": number})
            sender.hear(limits.bucket, lambda: self._check("bucket"))
        began = self._timed("broadcast", began)
        self._at(f"{self._server} received")
        self._wait("received", lambda state: state.received == version.policy, limits.received)
        self._timed("received", began)
        self._order(None)
        return True

    def _whole(self, work: Callable[[], bool]) -> bool:
        """Do a work; a fault ends this pair, and no other."""
        with self._lock:
            self._works += 1
        try:
            return self._judged(work)
        finally:
            with self._lock:
                self._works -= 1

    def _judged(self, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except MemberFault as error:
            fault = error
        except RuntimeError as error:  # the sender's; it may be known who
            fault = MemberFault("bucket" if self.joined else JOIN, f"group {self.name}: {error}")
        if not self.over:
            _log.warning("%s reads the volume: %s", self._server, fault.message)
            self._seen(f"fault: {fault.phase}", 0.0)
            self.close()
        return False

    def _order(self, offer: wire.GroupOffer | None) -> None:
        self._members.order(self._server, wire.GroupOrders(epoch=self._epoch, offer=offer))

    def _check(self, phase: str) -> None:
        self._members.check(self.name, self._server, phase)

    def _wait(self, phase: str, holds: Callable[[wire.MemberState], bool], deadline_s: float) -> bool:
        self._members.wait(phase, self.name, self._server, holds, deadline_s)
        return True

    def _timed(self, phase: str, began: float) -> float:
        now = time.monotonic()
        self._seen(phase, now - began)
        return now


class GroupSender:
    """The pairs of all servers. `propose` a version while it is written, `offer` it before it is announced, then `send`
    or `withdraw` it.
    """

    def __init__(
        self,
        members: Members,
        options: GroupOptions,
        waits: WaitRegistry,
        seen: Seen = lambda phase, seconds: None,
        at: At = lambda point: None,
        senders: SenderServer | None = None,
    ) -> None:
        self._members = members
        self._options = options
        self._waits = waits
        self._seen = seen
        self._at = at
        self._life = uuid.uuid4().hex[:8]
        self._number = 0
        self._senders = senders or SenderServer()
        self._pairs: dict[str, ServerPair] = {}
        self._again: dict[str, float] = {}  # when a server may get another pair
        self._offered: dict[str, ServerPair] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="areal-pairs", daemon=True)
        self._keeper.start()

    def propose(self, policy: PolicyId) -> None:
        """Tell all servers that have a pair that this version will be sent."""
        self._offered = self._there()
        for pair in self._offered.values():
            pair.propose(str(policy))

    def offer(self, policy: PolicyId) -> bool:
        """Whether a server waits for the version; the others read the volume."""
        deadline = time.monotonic() + self._options.deadlines.offer
        with self._waits.waiting("weight group", "generation servers to hear of a version"):
            self._offered = {
                server: pair
                for server, pair in self._offered.items()
                if pair.heard(str(policy), max(0.0, deadline - time.monotonic()))
            }
        return bool(self._offered)

    def send(self, manifest: Manifest, digest: str, places: Mapping[str, Place]) -> dict[str, bool]:
        """Send what was offered, to all at once; answers which servers have it."""
        cut = buckets(manifest.tensors, self._options.bucket_bytes)
        version = _Outgoing(
            str(manifest.policy), digest, [[places[piece.name] for piece in bucket.pieces] for bucket in cut]
        )
        sent = {server: pair.send(version) for server, pair in self._offered.items() if not pair.over}
        with self._waits.waiting("weight group", f"generation servers to take {version.policy}"):
            return {server: one.result() for server, one in sent.items()}

    def withdraw(self) -> None:
        """What was offered isn't sent: the controller wants another version."""
        for pair in self._offered.values():
            pair.withdraw()

    def close(self) -> None:
        """Leave all groups."""
        self._closing.set()
        self._keeper.join()
        for pair in self._pairs.values():
            pair.close()
        self._senders.close()

    def _there(self) -> dict[str, ServerPair]:
        """The groups that are whole, by server."""
        with self._lock:
            return {server: pair for server, pair in self._pairs.items() if pair.joined and not pair.over}

    def _keep(self) -> None:
        """Every server that takes weights has a pair, and no other server has."""
        while not self._closing.wait(_LOOK_S):
            if able := self._members.able():
                self._senders.keep()
            with self._lock:
                for server, pair in list(self._pairs.items()):
                    if pair.over:
                        self._again[server] = time.monotonic() + _AGAIN_S
                        del self._pairs[server]
                    elif server not in able or pair.lost():
                        pair.close()
                        del self._pairs[server]
                for server in able.keys() - self._pairs.keys():
                    if time.monotonic() >= self._again.get(server, 0.0):
                        self._pairs[server] = self._made(server, able[server].ranks)

    def _made(self, server: str, ranks: int) -> ServerPair:
        self._number += 1
        used = [pair.device for pair in self._pairs.values()]
        device = min(range(self._options.devices), key=used.count)
        name = f"areal-{self._life}-{self._number}"
        return ServerPair(
            name, server, ranks, device, self._members, self._senders, self._options, self._seen, self._at
        )
