"""Forked gloo ranks of two machines that publish to one server by its group: what arrived, a JSON line a case.

The server is a member's stream and a rank of the group on threads of rank 0, without a network.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import xxhash
from areal.broadcast import join_group
from areal.net.server import LoopThread
from areal.observe.waits import WaitRegistry
from areal.v1 import weights_pb2 as wire
from areal.values.policy import PolicyId
from areal.weights.group import buckets
from areal.weights.publish import WeightsRef
from areal.weights.verify import open_version
from areal_trainer.engine.group import RankMessage
from areal_trainer.engine.host_copy import specs_of
from areal_trainer.engine.meeting import Meeting
from areal_trainer.publish import group
from areal_trainer.publish.group import Deadlines, GroupOptions, GroupSender
from areal_trainer.publish.publisher import Publisher, PublishOrder
from areal_trainer.publish.sender import Members, SenderServer
from areal_trainer.rollout import owners
from support.forked_ranks import ended, forked, joined
from support.publishing_ranks import CANARY, tensors

BUCKET_BYTES = 600  # two tensors
RANKS = 3
PATIENT = Deadlines(60.0, offer=60.0, ready=60.0, bucket=20.0, received=60.0)  # a machine may be busy
VERSIONS = (3, 4)  # a full one, and its delta


class Senders(SenderServer):
    """A fork server of the program, for all cases."""

    def keep(self) -> None:
        """It is there."""

    def close(self) -> None:
        """It ends with the program."""


class Server:
    """Joins the group that it is told of, and takes what is offered. `root` has the versions on the volume."""

    def __init__(self, members: Members, root: Path, *, fails: bool) -> None:
        self.arrived: dict[str, dict[str, str]] = {}  # policy → tensor → xxh3 of the bytes that came
        self._root = root
        self._fails = fails
        self._state = wire.MemberState(server_id="generation-0", ranks=1, able=True)
        self._told: asyncio.Queue[wire.MemberState] = asyncio.Queue()
        self._group: Any = None
        self._tell()
        self._listening = asyncio.create_task(self._listen(members))

    def _tell(self, **changed: str) -> None:
        for name, value in changed.items():
            setattr(self._state, name, value)
        self._told.put_nowait(wire.MemberState.FromString(self._state.SerializeToString()))

    async def _states(self) -> AsyncIterator[wire.MemberState]:
        state = await self._told.get()
        while True:
            yield state
            with suppress(TimeoutError):
                state = await asyncio.wait_for(self._told.get(), 0.5)  # a silent server gets nothing

    async def _listen(self, members: Members) -> None:
        async for orders in members.Join(self._states(), None):  # type: ignore[arg-type]
            epoch, offer = orders.epoch, orders.offer
            if epoch.name and epoch.name != self._state.joined:
                self._group = await asyncio.to_thread(
                    join_group, "gloo", epoch.master_address, epoch.master_port, name=epoch.name,
                    rank=1, world_size=epoch.world_size, timeout_s=60.0,
                )  # fmt: skip
                self._tell(joined=epoch.name)
            if offer.policy_id and offer.policy_id != self._state.offered:
                self._tell(offered=offer.policy_id, ready=offer.policy_id)
            if offer.sending and offer.policy_id not in self.arrived:
                await asyncio.to_thread(self._take, offer)
                if self._fails:
                    self._group.give_up()
                    self._tell(failed=epoch.name, reason="out of memory")
                else:
                    self._tell(received=offer.policy_id)

    def _take(self, offer: wire.GroupOffer) -> None:
        policy = PolicyId.parse(offer.policy_id)
        manifest = open_version(self._root / policy.directory, offer.manifest_digest)
        came = self.arrived.setdefault(offer.policy_id, {})
        for bucket in buckets(manifest.tensors, offer.bucket_bytes):
            flat = torch.empty(bucket.length, dtype=torch.uint8)
            self._group.broadcast(flat).wait()
            start = 0
            for piece in bucket.pieces:
                raw = flat[start : start + piece.length].numpy().tobytes()
                came[piece.name] = xxhash.xxh3_128_hexdigest(raw)
                start += piece.length
            if self._fails:
                return


def rank_main(rank: int, home: Path, fails: bool, senders: SenderServer) -> None:
    os.environ["GROUP_RANK"] = str(rank // 2)  # the third is of another machine
    root, ranks = home / "weights", joined(rank, home / "store", RANKS)
    waits, sender, server, faults = WaitRegistry("trainer"), None, None, []
    thread = LoopThread()
    if rank == 0:
        members = Members(thread.loop)

        async def serve() -> Server:
            return Server(members, root, fails=fails)

        server = thread.call(serve(), 10.0)
        while not members.able():
            thread.call(asyncio.sleep(0.01), 10.0)
        sender = GroupSender(
            members, GroupOptions("127.0.0.1", bucket_bytes=BUCKET_BYTES, deadlines=PATIENT), waits,
            lambda phase, seconds: faults.append(phase) if phase.startswith("fault") else None, senders=senders,
        )  # fmt: skip
        while not sender._there():
            thread.call(asyncio.sleep(0.01), 10.0)
    published: list[WeightsRef] = []

    def announce(reference: WeightsRef, final: bool) -> str:
        published.append(reference)
        return str(reference.policy_id)

    meeting = Meeting(ranks, "writing", 60.0)
    publisher = Publisher(root, {}, rank, meeting, announce, waits, full_every=3, group=sender)
    for version in VERSIONS:
        whole = tensors(version)
        writers = owners({name: tensor.numel() for name, tensor in whole.items()}, RANKS)
        message = None
        if rank == 0:
            order = publisher.order(PolicyId(version, 1), final=False)
            told: dict[str, Any] = {"staging": str(order.staging), "full": order.full, "by_group": order.by_group}
            message = RankMessage(told, {})
        heard = ranks.tell(message).header
        order = PublishOrder(PolicyId(version, 1), Path(heard["staging"]), False, heard["full"], heard["by_group"])
        mine = [(name, tensor) for name, tensor in whole.items() if writers[name] == rank]
        publisher.publish(order, mine, specs_of(mine), CANARY, deadline_s=60.0)
        publisher.wait(60.0)
    deadline = time.monotonic() + 60.0
    while server is not None and fails and not faults and time.monotonic() < deadline:
        time.sleep(0.05)  # the pair's own thread says it, and nobody waits for that
    publisher.close()
    if server is None:
        return
    expected = {
        f"{reference.policy_id}": {name: entry.xxh3 for name, entry in manifest.tensors.items()}
        for reference in published
        for manifest in [open_version(reference.path, reference.manifest_digest)]
    }
    full = [open_version(reference.path, reference.manifest_digest).base is None for reference in published]
    found = {"arrived": server.arrived, "expected": expected, "full": full, "faults": faults}
    (home / "found.json").write_text(json.dumps(found))


def main(home: Path) -> None:
    group._LOOK_S = 0.002  # who keeps the pairs would see a server's failure first, mostly
    senders = Senders()
    SenderServer.keep(senders)
    for case in ("takes", "fails"):
        (home / case / "weights").mkdir(parents=True)
        errors = home / case / "error"
        codes = ended(
            [forked(rank_main, rank, errors, home / case, case == "fails", senders) for rank in range(RANKS)], 240.0
        )
        file = home / case / "found.json"
        print(json.dumps({"codes": codes, **(json.loads(file.read_text()) if file.exists() else {})}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
