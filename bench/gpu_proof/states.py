"""Updates, checkpoints and publications: what is kept is what was trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary
from areal.weights.stage import StagingArea
from areal_trainer.checkpoint.checkpointer import POINTS, Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.engine.adam_states import rounded_stochastically
from areal_trainer.engine.engine import PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.meeting import Meeting
from areal_trainer.engine.optimizer import local
from areal_trainer.publish.publisher import Publisher
from safetensors.torch import load_file
from torch import Tensor

from gpu_proof.cell import Measuring
from gpu_proof.parts import alone, batch, differing, engine, micros, model, step

STEPS = 20
DRAWS = 1 << 20
CANARY = Canary(token_ids=(1, 2), logprobs=(0.0, -1.0), tolerance=1.0)


def weights(policy: PolicyEngine) -> dict[str, Tensor]:
    """The engine's state in host memory."""
    return {name: local(value.detach()).cpu().clone() for name, value in policy.state().items()}


def trained(policy: PolicyEngine, steps: int, first: int = 0) -> list[float]:
    """Losses of so many updates, each of a batch of its own."""
    losses = []
    for number in range(first, first + steps):
        tokens = batch(2, 2, (16, 32), seed=number)
        losses.append(step(policy, tokens, micros(tokens, 128, 64)))
    return losses


def optimizer(proof: Measuring) -> None:
    """The cell: kinds of AdamW's moments."""
    with alone() as ranks:
        place = model("small", proof.work, proof.device)
        exact, rough, moved = (
            trained(engine(place, ranks, state=kind), STEPS) for kind in ("float32", "bfloat16", "cpu")
        )
        for claim, losses in (("moments-bfloat16", rough), ("moments-host", moved)):
            proof.measured(claim, abs(losses[-1] / exact[-1] - 1), first=exact[0], last=exact[-1])
        value = torch.full((DRAWS,), 1.0 + 2**-9, device=proof.device)  # between 1 and its neighbour 2⁻⁷ above
        drawn = rounded_stochastically(value, torch.Generator(proof.device).manual_seed(0)).double()
        error = (drawn.mean() - value[0].double()) / (drawn.std() / DRAWS**0.5)
        proof.measured("rounding-unbiased", float(error.abs()))
        policy = engine(place, ranks)
        before, tokens = weights(policy), batch(2, 2, (40, 80))
        policy.accumulate(micros(tokens, 512, 256), lambda logprobs, _entropy, _micro: logprobs.sum() * float("nan"))
        policy.optimizer.step(1e-3)
        proof.measured("not-finite", differing(weights(policy), before))


def checkpoint(proof: Measuring) -> None:
    """The cell: saved, cut short, resumed. Flash attention's gradients have many orders of addition, or one."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with alone() as ranks:
        place = model("small", proof.work, proof.device)
        policy, home = engine(place, ranks), proof.work / "checkpoints"
        trained(policy, 3)
        keeper = Checkpointer(home, 2, policy)
        saving = keeper.save(RunPosition(3, 1), lambda: None)
        saved, random = weights(policy), torch.rand(8, device=proof.device)
        on = trained(policy, 3, 3)
        saving.wait()

        resumed = engine(place, ranks)
        _load(home, resumed)
        again = torch.rand(8, device=proof.device)
        proof.measured("checkpoint-state", differing(weights(resumed), saved))
        proof.measured("checkpoint-random", differing({"": again}, {"": random}))
        gone_on = trained(resumed, 3, 3)
        apart = {"losses": torch.tensor(gone_on), **weights(resumed)}
        proof.measured("checkpoint-steps", differing(apart, {"losses": torch.tensor(on), **weights(policy)}))
        other = engine(place, ranks, state="cpu")
        _load(home, other)
        proof.measured("checkpoint-kinds", abs(trained(other, 3, 3)[-1] / on[-1] - 1))
        damaged = sum(not _survives(home, policy, place, ranks, saved, point) for point in POINTS[:-1])
        proof.measured("checkpoint-crashes", damaged, points=len(POINTS) - 1)


class _Cut(Exception):
    """A save that goes no further."""


def _survives(
    home: Path, policy: PolicyEngine, place: Path, ranks: RankGroup, saved: dict[str, Tensor], point: str
) -> bool:
    """Whether a save that is cut short at `point` leaves the checkpoint before as it was."""

    def at(here: str) -> None:
        if here == point:
            raise _Cut

    cut = Checkpointer(home, 2, policy, at=at)
    try:
        cut.save(RunPosition(6, 1), lambda: None).wait()
        return False
    except _Cut:
        pass
    finally:
        cut.close()
    resumed = engine(place, ranks)
    return _load(home, resumed) == 3 and not differing(weights(resumed), saved)


def _load(home: Path, policy: PolicyEngine) -> int:
    """Resume from the newest checkpoint; its step."""
    keeper = Checkpointer(home, 2, policy)
    found = keeper.newest([])
    if found is None:
        return -1
    keeper.load(found)
    return int(found.record.step)


def publish(proof: Measuring) -> None:
    """The cell: three versions, the second and third as deltas."""
    with alone() as ranks:
        policy = engine(model("small", proof.work, proof.device), ranks)
        refs: list[Any] = []
        publisher = Publisher(
            proof.work / "volume", {}, 0, Meeting(ranks, "writing", 10.0),
            lambda ref, final: refs.append(ref) or "", WaitRegistry("trainer"), full_every=2,
        )  # fmt: skip
        stage = StagingArea(proof.work / "stage")
        versions = []
        for number in range(2):
            versions.append(_published(policy, publisher, number, proof.device, lambda: stage.prepare(
                refs[-1].path, refs[-1].manifest_digest).path))  # fmt: skip
            if not number:
                trained(policy, 1)
        publisher.close()
        (first, exact), (second, changed) = versions
        proof.measured("published-bytes", differing(first, exact))
        matrices = [name for name, value in first.items() if value.dim() > 1]  # a step is less than bfloat16 tells at 1
        proof.measured("published-update", sum(torch.equal(first[name], second[name]) for name in matrices))
        manifest = json.loads((Path(refs[-1].path) / "manifest.json").read_text())
        proof.measured("published-delta", differing(second, changed), whole=manifest.get("base") is None)


def _published(
    policy: PolicyEngine, publisher: Publisher, number: int, device: torch.device, staged: Callable[[], Path]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A version as a server loads it, and the engine's weights in the precision that is served."""
    order = publisher.order(PolicyId(number, 1), final=False)
    publisher.publish(order, policy.export(), policy.export_specs(), CANARY, deadline_s=60.0, device=device)
    publisher.wait(60.0)
    found: dict[str, Tensor] = {}
    for file in staged().glob("*.safetensors"):
        found |= load_file(file)
    held = {name.removeprefix("lm."): local(value.detach()) for name, value in policy.trained().items()}
    return found, {name: held[name].to(torch.bfloat16).cpu() for name in policy.export_specs()}


FUNCTIONS = {"optimizer": optimizer, "checkpoint": checkpoint, "publish": publish}
