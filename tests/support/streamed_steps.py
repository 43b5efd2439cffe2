"""A step whose gradient is taken in parts, beside the plain one: alone, or on two forked gloo ranks as a program.

A program: a JSON line a rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
from areal.spec.job import JobSpec, RLJob
from areal.spec.resolved_algorithm import whole_batches_for
from areal.v1 import common_pb2 as common
from areal.weights.adapter import AdapterConfig
from areal_trainer.actor import Actor, ActorOptions, UpdateFigures
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.data.batch import columns
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.optimizer import RateSchedule, local
from areal_trainer.frozen_model import OnSameRanks
from areal_trainer.options import advantage_options, objective_options
from areal_trainer.recording import TrainedTokens
from areal_trainer.rollout import TrainBatch
from support.forked_ranks import ended, forked, joined, words
from support.trainer_parts import VOCABULARY, sample
from torch import Tensor

GROUPS, SIZE = 9, 4
PARTS: tuple[tuple[int, ...], ...] = ((1, 4), (0,), (7, 8))
HEAD: dict[str, Any] = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "streamed"}}

Samples = Sequence[common.Sample]


def spec_of(algorithm: Mapping[str, Any], **more: Any) -> JobSpec:
    """A job at η = 0 with these fields of its algorithm."""
    usual = {"groupSize": SIZE, "batchSize": GROUPS, "maxSteps": 100, "maxStaleness": 0}
    spec = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "t"}}, "algorithm": {**usual, **algorithm}, **more}
    made = RLJob.model_validate({**HEAD, "spec": spec}).spec
    assert isinstance(made, JobSpec)
    return made


def samples_of(groups: Sequence[int], *, version: int = 3) -> list[common.Sample]:
    """Group 5 has one reward: nothing of it is trained by a name that masks such groups."""
    return [
        sample(g, i, version=version, shared=True, **({"reward": 1.0} if g == 5 else {}))
        for g in groups for i in range(SIZE)
    ]  # fmt: skip


def batch_of(groups: Sequence[int], **fields: Any) -> TrainBatch:
    """These groups in step 3."""
    return TrainBatch(3, 100, columns(samples_of(groups), VOCABULARY), **fields)


@dataclass
class Trained:
    """What a step did: the gradient that reached AdamW, this rank's shards, and the figures."""

    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    figures: UpdateFigures

    @property
    def tokens(self) -> TrainedTokens:
        assert self.figures.tokens is not None
        return self.figures.tokens


def actor_of(spec: JobSpec, model: Path, home: Path, ranks: RankGroup, *, lora: bool = False, **own: Any) -> Actor:
    """An actor for the job on a fresh engine; the reference is the policy half a step away."""
    adapter = AdapterConfig(4, 8.0, ("q_proj", "v_proj")) if lora else None
    engine = PolicyEngine(model, ModelOptions(adapter=adapter), ranks)
    for parameter in engine.trained().values():  # of an adapter too: its first weights make nothing
        flat = local(parameter.detach())
        flat += 0.02 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(flat.numel()))
    options = ActorOptions(
        objective_options(spec), advantage_options(spec), RateSchedule(1e-2, 0, "constant"),
        micro_batch_tokens=96, keep_tokens=True, whole_batches=bool(whole_batches_for(spec)),
    )  # fmt: skip
    reference = OnSameRanks(lambda micros, tokens: 0.9 * engine.logprobs(micros, tokens))
    return Actor(engine, options, Checkpointer(home / "checkpoints", 1, engine), reference=reference, **own)


def trained(actor: Actor, parts: Sequence[Sequence[int]], *, begun: Sequence[int] | None = None) -> Trained:
    """One step of all groups, these parts of it before the rest."""
    engine, caught = actor.engine, {}
    adam = engine.optimizer._adam
    as_it_is = adam.step

    def catch(gradients: dict[str, Tensor], rate: float) -> None:
        caught.update({name: gradient.clone() for name, gradient in gradients.items()})
        as_it_is(gradients, rate)

    adam.step = catch  # type: ignore[method-assign]
    for part in parts:
        early = batch_of(part, whole=False)
        actor.accumulate(early, actor.advantages(early.tokens))
    whole = batch_of(range(GROUPS), begun=tuple(g for part in parts for g in part) if begun is None else tuple(begun))
    figures = actor.update(whole, actor.advantages(whole.tokens), begun=whole.begun)
    weights = {name: local(parameter.detach()).clone() for name, parameter in engine.trained().items()}
    return Trained(caught, weights, figures)


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest, relative to the largest entry of all."""
    assert one.keys() == other.keys()
    assert one, "nothing is compared"
    most = max(float(tensor.abs().max()) for tensor in one.values() if tensor.numel())
    return max(float((one[name] - other[name]).abs().max()) for name in one if one[name].numel()) / most


def rank_of(rank: int, home: Path, model: Path) -> None:
    ranks = joined(rank, home / "store", 2)
    told = []
    for name, lora in (("GRPO", False), ("DrGRPO", False), ("GRPO", True)):
        spec = spec_of({"name": name, **({"kl": {"coefficient": 0.1}} if name == "GRPO" else {})})
        plain = trained(actor_of(spec, model, home, ranks, lora=lora), ())
        parts = trained(actor_of(spec, model, home, ranks, lora=lora), PARTS)
        told.append({
            "gradient": difference(plain.gradients, parts.gradients),
            "weights": difference(plain.weights, parts.weights),
            "loss": abs(plain.figures.loss.loss - parts.figures.loss.loss),
            "tokens": plain.figures.loss.tokens == parts.figures.loss.tokens > 0,
            "kept": bool(np.array_equal(plain.tokens.flags, parts.tokens.flags)),
            "begun": parts.figures.begun,
        })  # fmt: skip
    (home / f"{rank}.json").write_text(json.dumps(told))
    ranks.close()


def main() -> None:
    home, model = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    codes = ended([forked(rank_of, rank, home / "error", home, model) for rank in range(2)], 240.0)
    assert codes == [0, 0], words(home / "error", 2)
    for rank in range(2):
        print((home / f"{rank}.json").read_text())


if __name__ == "__main__":
    main()
