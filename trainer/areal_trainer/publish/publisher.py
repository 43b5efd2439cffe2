"""Publishes versions beside training: copy, write, meet, seal, announce, collect.

Every rank copies the tensors that it owns off the device; that is all that training waits for. A thread of each rank
writes the copy into one staging directory and tells rank 0 what it wrote; rank 0 seals when all have, then announces.
A rank that dies at any point leaves nothing visible. A failure is raised at the next `publish` or `wait`, never
swallowed; one version at a time bounds memory to one copy, two where deltas are made.
"""

import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from areal.errors import ArealError, InfraError
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.adapter import base_checksums
from areal.weights.manifest import Canary, Manifest
from areal.weights.publish import WeightsRef, collect, copy_version, open_staging, seal, seal_delta, versions
from areal.weights.shards import DEFAULT_SHARD_BYTES, DeltaPart, ShardPart, write_delta, write_part
from areal.weights.verify import open_version
from torch import Tensor

from areal_trainer.engine.host_copy import HostSlab, TensorSpec
from areal_trainer.engine.meeting import Meeting, failed, failures
from areal_trainer.publish.exporter import Exporter, sources
from areal_trainer.publish.group import GroupSender
from areal_trainer.publish.handover import VersionPlaces, dismiss, hand_over

log = logging.getLogger(__name__)

_HOST = torch.device("cpu")

# Host copies of the tensors that a rank publishes: two, used in turn (a double buffer), where deltas are made of them.


class Snapshots:
    """Copies of one rank's tensors: one, or with the one before two, the second from the second publication on."""

    def __init__(self, *, keeps_before: bool) -> None:
        self._keeps_before = keeps_before
        self.now = self.before = HostSlab("no copy yet", {}, _HOST)

    def take(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        specs: Mapping[str, TensorSpec],
        device: torch.device,
        *,
        shared: bool = False,
    ) -> None:
        """Copy tensors from the device; on return they may change. What was current is the copy before.

        `shared`: senders may map them.
        """
        if self._keeps_before:
            self.now, self.before = self.before, self.now
        if not self.now.views:
            self.now = HostSlab("a version's copy", specs, device, shared=shared)
        self.now.fill(tensors)


Announce = Callable[[WeightsRef, bool], str]
"""Tells the controller about a version (True: the last); answers the policy that is served then."""

POINTS = ("copied", "written", "met", "before rename", "sealed", "announced")
"""Places at which a publication may be cut short, in their order; `Publisher.at` is told of each."""

_WORTHWHILE = 0.5  # of a full version's bytes: a delta above costs late joiners more than it saves


@dataclass(frozen=True)
class PublishOrder:
    """What rank 0 decided about a publication; all ranks are told."""

    policy: PolicyId
    staging: Path
    final: bool
    full: bool = True  # else the changes from the version before
    by_group: bool = False  # rank 0 may ask the others for their tensors: senders map them


class Publisher:
    """One rank's part in publications under `root`. `announce` is called on rank 0 only."""

    def __init__(
        self,
        root: Path,
        files: Mapping[str, bytes | Path],
        rank: int,
        meeting: Meeting,
        announce: Announce,
        waits: WaitRegistry,
        full_every: int = 1,
        base: Path | None = None,
        exporter: Exporter | None = None,
        group: GroupSender | None = None,
        volume: Path | None = None,
        keep_every: int = 1,
        at: Callable[[str], None] = lambda point: None,
    ) -> None:
        """Every `full_every`-th version is a full one, the others are deltas of the one before if that saves much.

        `base` is the frozen model whose adapters these are; adapters are one file, so rank 0 has all tensors.
        `exporter` makes models of what is published. `group` sends versions to servers, beside the volume.
        `volume`: `root` is memory that servers read, and ends with this machine or pod. Every `keep_every`-th version,
        the last and those for exports are copied to the volume: after they were announced, so that nobody waits for it.
        """
        self._volume, self._keep_every = volume, keep_every
        self._copying: Future[None] | None = None
        self._root = root
        self._files = files
        self._rank = rank
        self._meeting = meeting
        self._announce = announce
        self._waits = waits
        self._full_every = full_every
        self._adapter_of = base
        self._exporter = exporter
        self._group = group
        self._frozen: Mapping[str, str] = {}  # checksums of `base`, read when the first version is sealed
        self._base: Manifest | None = None  # on rank 0: of the version before
        self._until_full = 0  # on rank 0: publications until the next full one
        self._at = at
        self._places: VersionPlaces | None = None
        self._snapshots = Snapshots(keeps_before=full_every > 1)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="areal-publish")
        self._running: Future[None] | None = None

    def order(self, policy: PolicyId, *, final: bool) -> PublishOrder:
        """Begin a publication: rank 0 only, once nothing is being published."""
        try:
            kept = final or (self._exporter is not None and self._exporter.due(policy))  # as a model of its own
            full = kept or self._base is None or self._until_full <= 0
            return PublishOrder(policy, open_staging(self._root, policy), final, full, self._group is not None)
        except OSError as error:
            raise InfraError(
                f"publishing under {self._root} failed: {error}", fix="check that the run's volume is writable"
            ) from error

    def publish(
        self,
        order: PublishOrder,
        tensors: Iterable[tuple[str, Tensor]],
        specs: Mapping[str, TensorSpec],
        canary: Canary,
        *,
        deadline_s: float,
        device: torch.device = _HOST,
    ) -> None:
        """Copy this rank's tensors and start to write them; first waits until its part of the version before is out.

        `specs` of all of them are the same at each call. `device` is where they are.
        """
        self.wait(deadline_s)
        self._snapshots.take(tensors, specs, device, shared=order.by_group)
        self._places = self._places or VersionPlaces(device)
        self._at("copied")
        self._running = self._pool.submit(self._publish, order, canary)
        if self._volume is not None and self._rank == 0:
            self._copying = self._pool.submit(self._keep, self._volume, order, self._running, self._copying)
            if order.final:
                self._running = self._copying  # there is no memory to find the model in afterwards

    def wait(self, deadline_s: float) -> None:
        """Wait until nothing is being published. Raises what went wrong with it."""
        with self._waits.waiting("publish", "the version before to be written and accepted", deadline_s=deadline_s):
            if not self.idle(deadline_s):
                raise InfraError(
                    f"publishing weights takes longer than {deadline_s:.0f} s", fix="check the run's volume"
                )

    def idle(self, within_s: float) -> bool:
        """Whether nothing is being published, or that ends in time. Raises what went wrong with it."""
        if self._copying is not None and self._copying.done():
            self._copying.result()
        if self._running is None:
            return True
        try:
            self._running.result(within_s)
        except FutureTimeoutError:
            return False
        self._running = None
        return True

    def close(self) -> None:
        """Give the thread back; what runs is finished, and the volume has the newest version."""
        left = self._pool.submit(self._leave_memory, self._volume) if self._volume and self._rank == 0 else None
        self._pool.shutdown(wait=True)
        if left is not None and (error := left.exception()) is not None:
            log.warning(
                "the newest version stays in memory, %s: it was not copied to the volume: %s", self._root, error
            )
        if self._group is not None:
            self._group.close()

    def _publish(self, order: PublishOrder, canary: Canary) -> None:
        if self._group is not None:
            self._group.propose(order.policy)
        try:
            said = self._write(order).model_dump_json().encode()
        except (OSError, ArealError) as error:
            self._meeting.gather(failed(error))  # the others needn't wait for the deadline
            self._abandon(order)
            if isinstance(error, ArealError):
                raise
            fix = "free space on the run's volume, or check its mount"
            raise InfraError(f"writing weights failed: {error}", fix=fix) from error
        self._at("written")
        heard = self._meeting.gather(said)
        self._at("met")
        others = self._meeting.group if order.by_group else None  # None with one rank, too
        if self._rank == 0:
            try:
                self._finish(order, heard, canary, others)
            finally:
                if others is not None:
                    dismiss(others, [rank for rank, one in enumerate(heard) if rank and not failures([one])])
        elif others is not None:
            hand_over(others, self._snapshots.now.views, self._snapshots.now.places)

    def _keep(
        self, volume: Path, order: PublishOrder, published: "Future[None]", earlier: "Future[None] | None"
    ) -> None:
        """Copy what was announced to the volume, where it is to stay; in the servers' turn, and in this thread.

        Raises what went wrong with an earlier copy, too: nobody may have looked at it since.
        """
        if earlier is not None:
            earlier.result()
        published.result()
        policy, exported = order.policy, self._exporter is not None and self._exporter.due(order.policy)
        if order.final or exported or policy.version % self._keep_every == 0:
            copy_version(self._root / policy.directory, volume, policy)
            if self._exporter is not None:
                self._exporter.run(policy)
            collect(volume, set(), latest=policy)

    def _leave_memory(self, volume: Path) -> None:
        """Memory is given back once the volume has its newest version; else it stays, for a restart to find."""
        if found := versions(self._root):
            copy_version(self._root / found[-1].directory, volume, found[-1])
        shutil.rmtree(self._root, ignore_errors=True)

    def _write(self, order: PublishOrder) -> ShardPart | DeltaPart:
        """Write this rank's part."""
        current = sources(self._snapshots.now.views.items())
        if order.full:
            room = DEFAULT_SHARD_BYTES if self._adapter_of is None else sys.maxsize
            return write_part(order.staging, self._rank, current, room)
        base = {name: data for name, _, _, data in sources(self._snapshots.before.views.items())}
        return write_delta(order.staging, self._rank, base, current)

    def _finish(self, order: PublishOrder, heard: list[bytes], canary: Canary, others: Any) -> None:
        try:
            if wrong := failures(heard):
                raise InfraError(f"policy {order.policy} could not be written: {wrong}", fix="check the run's volume")
            reference = self._seal(order, heard, canary)
        finally:
            self._abandon(order)
        self._at("sealed")
        self._base = open_version(reference.path, reference.manifest_digest)
        self._count(self._base)
        owners = {name: rank for rank, raw in enumerate(heard) for name in _names(raw, full=order.full)}
        served = self._announced(order, reference, owners, others)
        if self._exporter is not None and self._volume is None:
            self._exporter.run(order.policy)
        collect(self._root, {PolicyId.parse(served)} if served else set(), latest=order.policy)

    def _announced(self, order: PublishOrder, reference: WeightsRef, owners: Mapping[str, int], others: Any) -> str:
        """Announce what is sealed, and send it to servers; answers the policy that is served."""
        assert self._base is not None
        assert self._places is not None
        offered = self._group is not None and self._group.offer(order.policy)
        served = self._announce(reference, order.final)
        self._at("announced")
        if self._group is not None and offered:
            if served == str(order.policy):
                places = self._places.of(others, self._base, owners, self._snapshots.now.places)
                self._group.send(self._base, reference.manifest_digest, places)
            else:
                self._group.withdraw()
        return served

    def _seal(self, order: PublishOrder, heard: list[bytes], canary: Canary) -> WeightsRef:
        place, before_rename = (self._root, order.staging, order.policy), partial(self._at, "before rename")

        if order.full:
            parts = [ShardPart.model_validate_json(raw) for raw in heard]
            if self._adapter_of is not None and not self._frozen:
                self._frozen = base_checksums(self._adapter_of)
            return seal(*place, parts, canary, self._files, frozen=self._frozen, before_rename=before_rename)
        assert self._base is not None
        changes = [DeltaPart.model_validate_json(raw) for raw in heard]
        return seal_delta(*place, changes, self._base, canary, self._files, before_rename=before_rename)

    def _count(self, published: Manifest) -> None:
        """Number of deltas that may follow; none before the next full one's turn when this one saved too little."""
        if published.base is None:
            self._until_full = self._full_every - 1
        elif published.stored_bytes > _WORTHWHILE * published.total_bytes:
            self._until_full = 0
        else:
            self._until_full -= 1

    def _abandon(self, order: PublishOrder) -> None:
        """After sealing there is nothing left of the staging directory."""
        if self._rank == 0:
            shutil.rmtree(order.staging, ignore_errors=True)


def _names(said: bytes, *, full: bool) -> list[str]:
    """Which tensors a rank has written."""
    if not full:
        return list(DeltaPart.model_validate_json(said).changes)
    return [name for file in ShardPart.model_validate_json(said).files for name in file]
