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
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary, Manifest
from areal.weights.verify import verify_tensors
from areal_trainer.engine.group import RankMessage
from areal_trainer.engine.host_copy import specs_of
from areal_trainer.engine.meeting import Meeting
from areal_trainer.publish.publisher import Publisher, PublishOrder
from areal_trainer.rollout import owners
from support.forked_ranks import ended, forked, joined, words

CANARY = Canary(token_ids=(1, 2), logprobs=(0.0, -1.0), tolerance=0.1)
NAMES = [f"model.layers.{layer}.{part}.weight" for layer in range(4) for part in ("up", "down")] + ["embed"]


def tensors(version: int) -> dict[str, torch.Tensor]:
    """What version `version` is made of."""
    made = torch.Generator().manual_seed(version)
    return {name: torch.randn(16, 8, generator=made).to(torch.bfloat16) for name in NAMES}


def rank_main(rank: int, root: Path, store: Path, fence: int, victim: int, point: str) -> None:
    ranks = joined(rank, store, 2)

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
        message = RankMessage({"policy": str(order.policy), "staging": str(order.staging)}, {})
    told = ranks.tell(message).header
    order = PublishOrder(PolicyId.parse(told["policy"]), Path(told["staging"]), False)
    if point == "full disk" and rank == victim:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
    mine = [(name, tensor) for name, tensor in whole.items() if writers[name] == rank]
    publisher.publish(order, mine, specs_of(mine), CANARY, deadline_s=30.0)
    publisher.wait(30.0)


def case(home: Path, fence: int, victim: int, point: str) -> dict[str, object]:
    """What is visible after both ranks have ended."""
    root = home / "weights"
    root.mkdir(parents=True)
    store = home / f"store{fence}"
    errors = Path(f"{store}.error")
    codes = ended([forked(rank_main, rank, errors, root, store, fence, victim, point) for rank in range(2)], 40.0)
    visible = {}
    for path in sorted(root.glob("v*")):
        manifest = Manifest.from_bytes((path / "manifest.json").read_bytes())
        verify_tensors(path, manifest)
        visible[path.name] = sorted(manifest.tensors)
    hidden = len(list(root.glob(".tmp-*")))
    told = {"victim": victim, "point": point, "codes": codes, "visible": visible, "hidden": hidden}
    return {**told, "errors": words(errors, 2)}


def main() -> None:
    home = Path(sys.argv[1])
    for fence, (victim, point) in enumerate(json.loads(sys.argv[2]), start=1):
        print(json.dumps(case(home / f"{fence}", fence, victim, point)), flush=True)
    whole = tensors(3)
    print(json.dumps({name: tensor.view(torch.uint8).numpy().tobytes().hex() for name, tensor in whole.items()}))


if __name__ == "__main__":
    main()
