"""GPU claims of several processes: memory by handle, the weight group, ranks on two cards, SGLang's compilers."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.multiprocessing as processes
from areal.broadcast import join_group, rendezvous_server
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.group import RankGroup
from torch import Tensor

from gpu_proof.cell import Measuring, NotTried
from gpu_proof.parts import alone, batch, engine, likelihood, model

ROOT = Path(__file__).resolve().parents[2]
BUCKET = 64 << 20  # bytes; on a card more
PATIENCE_S = 60.0
JOIN_S = 30.0
JOINED_S = 240.0  # until two more processes have imported torch and made their steps
STEPS = 3


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.cpu().numpy().data).hexdigest()


def _bucket(proof: Measuring) -> Tensor:
    size = BUCKET * (8 if proof.cuda else 1)
    return torch.arange(size // 4, dtype=torch.int32, device=proof.device).view(torch.uint8)


def handle(proof: Measuring) -> None:
    """The cell: a bucket that another process reads where it lies."""
    context = processes.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    reader = context.Process(target=_read, args=(there, back), daemon=True)
    reader.start()
    before = _taken(proof)
    bucket = _bucket(proof)
    exact = _digest(bucket)
    there.put(bucket)
    proof.measured("handle-bytes", float(back.get(timeout=PATIENCE_S) != exact))
    del bucket
    reader.join(PATIENCE_S)
    gc.collect()
    if proof.cuda:
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    proof.measured("handle-memory", max(0, _taken(proof) - before) / 2**20)


def _read(there: Any, back: Any) -> None:
    tensor = there.get(timeout=PATIENCE_S)
    back.put(_digest(tensor))
    del tensor
    gc.collect()


def _taken(proof: Measuring) -> int:
    """Bytes that the card has given, or that this process shares with others."""
    if proof.cuda:
        free, whole = torch.cuda.mem_get_info()
        return whole - free
    return int(psutil.Process().memory_info().shared)


def weight_group(proof: Measuring) -> None:
    """The cell: a broadcast to one server, that dies before the second bucket."""
    bucket = _bucket(proof).cpu()
    store = rendezvous_server(JOIN_S)
    context = processes.get_context("spawn")
    back = context.Queue()
    server = context.Process(target=_serve, args=(store.port, bucket.numel(), back), daemon=True)
    server.start()
    group = join_group("gloo", "127.0.0.1", store.port, name="proof", rank=0, world_size=2, timeout_s=JOIN_S)
    group.broadcast(bucket).wait()
    proof.measured("group-bytes", float(back.get(timeout=PATIENCE_S) != _digest(bucket)))
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    server.join(PATIENCE_S)
    began = time.monotonic()
    try:
        group.broadcast(bucket).wait()
        proof.measured("group-lost", float("nan"), error="a broadcast to nobody succeeded")
    except RuntimeError as error:
        proof.measured("group-lost", time.monotonic() - began, error=str(error).splitlines()[0][:200])
    group.give_up()


def _serve(port: int, size: int, back: Any) -> None:
    group = join_group("gloo", "127.0.0.1", port, name="proof", rank=1, world_size=2, timeout_s=JOIN_S)
    room = torch.empty(size, dtype=torch.uint8)
    group.broadcast(room).wait()
    back.put(_digest(room))
    time.sleep(PATIENCE_S)


def two_cards(proof: Measuring) -> None:
    """The cell: the same updates by one rank and by two."""
    place = model("small", proof.work, proof.device)
    with alone() as ranks:
        exact = _losses(place, ranks)
    context = processes.get_context("spawn")
    back = context.Queue()
    port = rendezvous_server(1.0).port  # free a moment later
    members = [context.Process(target=_rank, args=(rank, port, place, back), daemon=True) for rank in range(2)]
    for one in members:
        one.start()
    told = [back.get(timeout=JOINED_S) for _ in members]
    for one in members:
        one.join(PATIENCE_S)
    summed = [sum(parts) for parts in zip(*told, strict=True)]
    apart = max(abs(found / one - 1) for found, one in zip(summed, exact, strict=True))
    proof.measured("nccl-step", apart, first=exact[0], last=exact[-1])


def _rank(rank: int, port: int, place: Path, back: Any) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    ranks = RankGroup()
    back.put(_losses(place, ranks))
    ranks.close()


def _losses(place: Path, ranks: RankGroup) -> list[float]:
    """Of this rank's part of some updates."""
    policy, found = engine(place, ranks, precision="float32", attention="dense"), []
    for number in range(STEPS):
        tokens = batch(4, 2, (16, 32), seed=number)
        parts = rank_micro_batches(
            tokens, np.arange(8), tokens.trainable(), rank=ranks.rank, world_size=ranks.world_size,
            micro_batch_tokens=64, pack_length=64,
        )  # fmt: skip
        loss = policy.accumulate(parts, likelihood(tokens))
        policy.optimizer.step(1e-3, loss)
        found.append(float(loss))
    return found


def kernels(proof: Measuring) -> None:
    """The cell: what SGLang compiles at its first tokens, with the compilers of its own environment."""
    python = os.environ.get("SGLANG_PYTHON")
    if not python:
        raise NotTried("no SGLang: name the Python of its environment in SGLANG_PYTHON")
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    command = [ROOT / "docker/kernels", Path(python).parents[1], proof.work / "kernels", capability]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    proof.measured("sglang-kernels", done.returncode, said=(done.stdout + done.stderr)[-500:])


FUNCTIONS = {"handle": handle, "weight-group": weight_group, "two-cards": two_cards, "kernels": kernels}
