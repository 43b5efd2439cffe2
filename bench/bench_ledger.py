"""The ledger from end to end: add_samples → close → take → commit, beside a loopback TCP stream of the same bytes.

Durability as in a run: append-only file, synced every second. Two sizes of sample: 2k and 16k tokens.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import numpy as np
from areal.ledger import payload
from areal.ledger.async_client import AsyncLedger
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import NewSample, SampleMeta
from areal.v1 import common_pb2 as common
from report import Figure, median_rates, report

GROUPS, SAMPLES = 16, 8


def sample_of(tokens: int) -> bytes:
    """A sample as a worker stores it, of `tokens` tokens."""
    rng = np.random.default_rng(tokens)
    sequence = common.TokenSequence(
        token_ids=(rng.zipf(1.3, tokens) % 150_000).astype("<i4").tobytes(),
        logprobs=(-rng.exponential(1.0, tokens)).astype("<f4").tobytes(),
        loss_mask=np.ones(tokens, "u1").tobytes(),
        spans=[common.Span(start=0, end=tokens, policy_id="1.f1", server_id="s")],
    )
    return payload.encode(common.Sample(sequences=[sequence]))


def through_the_ledger(address: str, body: bytes) -> float:
    """Bytes a second of whole groups, from a worker's memory to a trainer's."""
    job = f"bench-{time.monotonic_ns()}"
    meta = SampleMeta(0, 1.0, 1, 1, 2, 100, False, 0)

    async def produce() -> None:
        async with AsyncLedger(address, job) as ledger:
            await ledger.claim(1)
            for group in range(GROUPS):
                await ledger.add_samples([NewSample(group, index, body, meta) for index in range(SAMPLES)])
                await ledger.close(1, group, "complete", SAMPLES)

    started = time.perf_counter()
    asyncio.run(produce())
    with SyncLedger(address, job) as trainer:
        trainer.recover(1, 0)
        taken = trainer.take(1, 0, GROUPS)
        moved = sum(len(part) for group in taken for part in group.payloads)
        trainer.commit(1, GROUPS)
    assert moved == GROUPS * SAMPLES * len(body)
    return moved / (time.perf_counter() - started)


def through_tcp(body: bytes) -> float:
    """Bytes a second of the same messages over one loopback connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    total = GROUPS * SAMPLES * len(body)

    def receive() -> None:
        peer, _ = listener.accept()
        left = total
        while left:
            left -= len(peer.recv(1 << 20))
        peer.close()

    receiver = threading.Thread(target=receive)
    receiver.start()
    started = time.perf_counter()
    with socket.create_connection(listener.getsockname()) as sender:
        for _ in range(GROUPS * SAMPLES):
            sender.sendall(body)
        receiver.join()
    listener.close()
    return total / (time.perf_counter() - started)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes"],
        stdout=subprocess.DEVNULL,
    )
    try:
        asyncio.run(wait_for(port))
        figures = []
        for tokens in (2_048, 16_384):
            body = sample_of(tokens)
            ledger, tcp = median_rates(
                5, lambda body=body: through_the_ledger(f"127.0.0.1:{port}", body), lambda body=body: through_tcp(body)
            )
            figures.append(Figure(f"samples of {tokens} tokens, everysec", "B/s", ledger, tcp, "TCP stream"))
        report("ledger", figures)
    finally:
        redis.terminate()
        redis.wait(10)
        shutil.rmtree(folder)


async def wait_for(port: int) -> None:
    """Until Redis answers."""
    async with AsyncLedger(f"127.0.0.1:{port}", "probe", retry_for_s=10) as ledger:
        await ledger.run_id()


if __name__ == "__main__":
    main()
