"""Two forked gloo ranks that publish, one of which may die at a labelled point. Run as a program: one JSON line a case.

Forked after torch is imported, so that a case takes a fraction of a second.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from areal.errors import ArealError
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary, Manifest
from areal.weights.verify import verify_tensors
from areal_trainer.engine.group import Ranks
from areal_trainer.engine.meeting import Meeting
from areal_trainer.engine.message import Message
from areal_trainer.publish.plan import owners
from areal_trainer.publish.publisher import Order, Publisher

CANARY = Canary(token_ids=(1, 2), logprobs=(0.0, -1.0), tolerance=0.1)
NAMES = [f"model.layers.{layer}.{part}.weight" for layer in range(4) for part in ("up", "down")] + ["embed"]


def tensors(version: int) -> dict[str, torch.Tensor]:
    """What version `version` is made of."""
    made = torch.Generator().manual_seed(version)
    return {name: torch.randn(16, 8, generator=made).to(torch.bfloat16) for name in NAMES}


def rank_main(rank: int, root: Path, store: Path, fence: int, victim: int, point: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    ranks = Ranks()

    def at(here: str) -> None:
        if rank == victim and here == point:
            os.kill(os.getpid(), signal.SIGKILL)
        while point == "late" and rank == victim and here == "written" and not Path(f"{store}.error0").exists():
            time.sleep(0.01)

    meeting = Meeting(ranks, "writing", 1.0 if point == "late" else 20.0)
    publisher = Publisher(root, {}, rank, meeting, lambda ref, final: "", WaitRegistry("trainer"), at=at)
    whole = tensors(3)
    writers = owners({name: tensor.numel() for name, tensor in whole.items()}, 2)
    message = None
    if rank == 0:
        order = publisher.order(PolicyId(3, fence), final=False)
        message = Message({"policy": str(order.policy), "staging": str(order.staging)}, {})
    told = ranks.tell(message).header
    order = Order(PolicyId.parse(told["policy"]), Path(told["staging"]), False)
    if point == "full disk" and rank == victim:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
    mine = ((name, tensor) for name, tensor in whole.items() if writers[name] == rank)
    publisher.publish(order, mine, CANARY, deadline_s=30.0)
    publisher.wait(30.0)


def child(rank: int, *args: object) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        rank_main(rank, *args)  # type: ignore[arg-type]
    except ArealError as error:
        Path(f"{args[1]}.error{rank}").write_text(error.message)
        os._exit(75)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def case(home: Path, fence: int, victim: int, point: str) -> dict[str, object]:
    """What is visible after both ranks have ended."""
    root = home / "weights"
    root.mkdir(parents=True)
    store = home / f"store{fence}"
    pids = [child(rank, root, store, fence, victim, point) for rank in range(2)]
    codes = [0, 0]
    deadline = time.monotonic() + 40
    open_ = set(pids)
    while open_:
        for pid in list(open_):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pids.index(pid)] = os.waitstatus_to_exitcode(status)
                open_.discard(pid)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    visible = {}
    for path in sorted(root.glob("v*")):
        manifest = Manifest.from_bytes((path / "manifest.json").read_bytes())
        verify_tensors(path, manifest)
        visible[path.name] = sorted(manifest.tensors)
    errors = {rank: file.read_text() for rank in range(2) if (file := Path(f"{store}.error{rank}")).exists()}
    hidden = len(list(root.glob(".tmp-*")))
    return {"victim": victim, "point": point, "codes": codes, "visible": visible, "hidden": hidden, "errors": errors}


def main() -> None:
    home = Path(sys.argv[1])
    for fence, (victim, point) in enumerate(json.loads(sys.argv[2]), start=1):
        print(json.dumps(case(home / f"{fence}", fence, victim, point)), flush=True)
    whole = tensors(3)
    print(json.dumps({name: tensor.view(torch.uint8).numpy().tobytes().hex() for name, tensor in whole.items()}))


if __name__ == "__main__":
    main()
