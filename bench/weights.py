"""Benchmark of the weight path: the trainer's pause, writing, and staging, full and as a delta, for 0.5 GB of bfloat16.

Beside limits of the same run: a copy in memory for the pause, reading and hashing in memory for staging, a plain
durable write for writing; a copy in memory, too, for a broadcast to one server by gloo on loopback, checked by the
embedded engine's receiver as a second process. The volume is where TMPDIR is. Loading by an engine is not part of it.

    python bench/weights.py [--megabytes 500]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import xxhash
from areal.broadcast import join_group, rendezvous_server
from areal.engine.group import GroupReceiver
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.group import buckets
from areal.weights.manifest import Canary, Manifest
from areal.weights.publish import WeightsRef
from areal.weights.stage import StagingArea
from areal.weights.verify import open_version
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.meeting import Meeting
from areal_trainer.publish.publisher import Publisher

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Figure, report

LAYERS = 24
CHANGED = 0.0117  # of the words, as measured for one step at a learning rate of 1e-6
CANARY = Canary(token_ids=(1, 2), logprobs=(0.0, -1.0), tolerance=0.1)
DEADLINE_S = 300.0


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def model(megabytes: int) -> dict[str, torch.Tensor]:
    words = megabytes * 500_000 // LAYERS
    return {f"model.layers.{n}.up.weight": (torch.randn(words) * 0.02).to(torch.bfloat16) for n in range(LAYERS)}


def step(tensors: dict[str, torch.Tensor]) -> None:
    """What an optimizer step at a small learning rate changes: the last bit of one weight in a hundred."""
    for tensor in tensors.values():
        words = tensor.view(torch.int16)
        words ^= (torch.rand(words.shape) < CHANGED).to(torch.int16)


def durable_write(path: Path, data: memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def receive(port: int, manifest: Manifest, bucket_bytes: int, told: Connection) -> None:
    """One server's engine: joins the group, takes every bucket, checks every tensor."""

    async def run() -> None:
        receiver = GroupReceiver()
        place = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
        await receiver.join({**place, "group_name": "bench", "backend": "gloo"})
        told.send("joined")
        for bucket in buckets(manifest.tensors, bucket_bytes):
            body = {
                "names": [piece.name for piece in bucket.pieces],
                "dtypes": [piece.dtype for piece in bucket.pieces],
                "shapes": [piece.shape for piece in bucket.pieces],
                "xxh3": [piece.xxh3 for piece in bucket.pieces],
            }
            await receiver.receive({**body, "group_name": "bench", "load_format": "flattened_bucket"})
        told.send(len(receiver.take()))

    asyncio.run(run())


def broadcast(tensors: dict[str, torch.Tensor], manifest: Manifest, bucket_bytes: int = 64 << 20) -> float:
    """Seconds from the first bucket until a server has all of them, checked."""
    store = rendezvous_server(DEADLINE_S)
    heard, told = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(
        target=receive, args=(store.port, manifest, bucket_bytes, told)
    )
    server.start()
    group = join_group("gloo", "127.0.0.1", store.port, name="bench", rank=0, world_size=2, timeout_s=DEADLINE_S)
    assert heard.recv() == "joined"

    def send() -> None:
        for bucket in buckets(manifest.tensors, bucket_bytes):
            parts = [tensors[piece.name].reshape(-1).view(torch.uint8) for piece in bucket.pieces]
            group.broadcast(torch.cat(parts)).wait()
        assert heard.recv() == len(tensors)

    taken = seconds(send)
    server.join()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=500)
    tensors = model(parser.parse_args().megabytes)
    size = sum(tensor.nbytes for tensor in tensors.values())
    room = {name: tensor.clone() for name, tensor in tensors.items()}
    ranks = RankGroup()
    refs: list[WeightsRef] = []
    rows: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as home:
        publisher = Publisher(
            Path(home, "volume"), {}, 0, Meeting(ranks, "writing", DEADLINE_S),
            lambda ref, final: refs.append(ref) or "", WaitRegistry("bench"), full_every=10,
        )  # fmt: skip
        stage = StagingArea(Path(home, "stage"))
        for version, kind in enumerate(["warm", "warm delta", "delta", "full"]):
            step(tensors)
            order = publisher.order(PolicyId(version, 1), final=kind == "full")
            pause = seconds(
                lambda order=order: publisher.publish(order, tensors.items(), CANARY, deadline_s=DEADLINE_S)
            )
            rows[f"{kind} pause"] = pause
            rows[f"{kind} write"] = seconds(lambda: publisher.wait(DEADLINE_S))
            rows[f"{kind} stage"] = seconds(lambda: stage.prepare(refs[-1].path, refs[-1].manifest_digest))
        copy = seconds(lambda: [room[name].copy_(tensor) for name, tensor in tensors.items()])
        raw = memoryview(torch.cat(list(tensors.values())).view(torch.uint8).numpy().data)
        disk = seconds(lambda: durable_write(Path(home, "raw"), raw))
        hashed = seconds(lambda: xxhash.xxh3_128(raw))
        delta = open_version(refs[2].path, refs[2].manifest_digest)
        rows["group"] = broadcast(tensors, open_version(refs[3].path, refs[3].manifest_digest))
        publisher.close()
    ranks.close()
    megabytes = size / 1e6
    rates = {name: megabytes / taken for name, taken in rows.items()}
    plain, hashing = (megabytes / disk, "plain write"), (megabytes / hashed, "hash")
    figures = [
        Figure("pause of training (the copy)", "MB/s", rates["full pause"], megabytes / copy, "copy"),
        Figure("write a full version, durably", "MB/s", rates["full write"], *plain),
        Figure("write a delta, durably", "MB/s", rates["delta write"], *plain),
        Figure("stage a full version (verify)", "MB/s", rates["full stage"], *hashing),
        Figure("stage a delta (copy, apply, verify)", "MB/s", rates["delta stage"], *hashing),
        Figure("send to a server by a group (gloo, verify)", "MB/s", rates["group"], megabytes / copy, "copy"),
    ]
    share = delta.stored_bytes / delta.total_bytes
    report("weights", figures, megabytes=megabytes, seconds=rows, delta_share=share)
    print(f"  a delta takes {share:.2%} of a full version's bytes")
    for kind in ("full", "delta"):
        total = sum(rows[f"{kind} {part}"] for part in ("pause", "write", "stage"))
        print(f"  {kind}: training paused {rows[f'{kind} pause']:.3f} s, published and staged {total:.3f} s")
    sent = sum(rows[part] for part in ("full pause", "full write", "group"))
    print(f"  group: published and in a server's memory {sent:.3f} s, {rows['group']:.3f} s of it the broadcast")


if __name__ == "__main__":
    main()
