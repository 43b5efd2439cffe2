"""Forked gloo ranks that train a tiny model on a mesh, from its start or from a checkpoint of another mesh.

A program: a JSON line a case.

Forked after torch is imported, so that a case takes about a second. A case's line has the steps' losses and gradient
norms as every rank has them, and which ranks exported each tensor; the tensors themselves are in the case's directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers.models.llama.modeling_llama
import transformers.models.qwen2.modeling_qwen2
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
from areal.expert_routes import rows_of
from areal.spec.training import Attention
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.divergence import Divergence
from areal_trainer.engine.engine import ModelOptions, PolicyEngine, ValueEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.self_check import check_packing
from areal_trainer.rollout import owners
from areal_trainer.trainings.kinds import Learner
from numpy.typing import NDArray
from safetensors.torch import save_file
from support.forked_ranks import ended, forked, joined, words
from support.trainer_parts import VOCABULARY, batch
from torch import Tensor

MEASURE = Divergence("reverseKL", temperature=0.1)  # models of random weights say nearly the same of every token
ADAM = AdamWOptions(epsilon=1e-4, weight_decay=0.1, grad_clip=0.5)  # gradients of rounding alone move nothing
STEPS, SAVED = 3, 2  # a checkpoint of step SAVED


@dataclass(frozen=True)
class Case:
    """A world, its mesh, and where it begins: at the start model, or at another case's checkpoint."""

    model: str  # a directory
    world: int
    replicas: int = 1
    tensor: int = 1
    context: int = 1
    attention: Attention = "dense"
    reduce_always: bool = False  # gradients of each micro-batch, as large models do
    recompute: str = "none"
    resumes: str = ""  # the other case's directory
    teacher: str = ""  # a directory: then the model learns from it
    prefetch: bool = True  # layers are gathered ahead, as always

    @property
    def name(self) -> str:
        mesh = (self.replicas, self.tensor, self.context, self.attention)
        parts = (Path(self.model).name, self.world, *mesh, int(self.reduce_always), self.recompute)
        parts += () if self.prefetch else ("on-demand",)
        taught = f"-taught-by-{Path(self.teacher).name}" if self.teacher else ""
        return "-".join(map(str, parts)) + taught + ("-from-" + Path(self.resumes).name if self.resumes else "")


def rank_main(rank: int, home: Path, case: Case) -> None:
    ranks = joined(rank, home / "store", case.world, case.replicas, case.tensor, case.context)
    if not case.prefetch:
        PolicyEngine._prefetch = lambda self: None  # type: ignore[method-assign]
    router = (0.02, 0.003) if "moe" in case.model else (0.0, 0.0)
    engine = PolicyEngine(
        Path(case.model),
        ModelOptions(optimizer=ADAM, recompute=case.recompute, attention=case.attention, replay=True, router=router),
        ranks,
    )
    engine._always_reduce = case.reduce_always
    check_packing(engine, np.arange(1, 13), None)  # as each start does, on every mesh
    checkpointer = Checkpointer(home / "checkpoints", 9, engine)
    began = 0
    if case.resumes:
        found = Checkpointer(Path(case.resumes) / "checkpoints", 9, engine).newest([])
        assert found is not None
        checkpointer.load(found)
        began = found.record.step
    teacher = PolicyEngine(Path(case.teacher), ModelOptions(), ranks) if case.teacher else None

    def forward(micro: MicroBatch) -> Tensor:
        return engine.forward(micro)[0] if teacher is None else engine.divergence(micro, teacher, MEASURE)

    learner = Learner(engine, forward, 24, 16)
    steps = []
    for step in range(began, STEPS):
        tokens = batch(3, 4, seed=step, shared=True)
        engine.options = replace(engine.options, replay=step + 1 < STEPS)  # last, routers choose by themselves
        if engine.replays:
            tokens = replace(tokens, routes=routes(engine, tokens.token_ids))
        weights = np.where(tokens.trainable(), np.random.default_rng(step).normal(0, 0.02, tokens.tokens), 0.0)
        score = float(np.abs(learner.outputs(tokens)).sum())
        update = learner.update(tokens, weights, 1e-3)
        steps.append((update.loss, update.grad_norm, score, *engine.routers.figures().values()))
        if step + 1 == SAVED and not case.resumes:
            checkpointer.save(RunPosition(SAVED, 1), lambda: None).wait()
    seen = ahead(engine, lambda: learner.outputs(batch(1, 2, seed=0)))
    critic = valued(case, ranks) if not (case.resumes or case.teacher) else None
    writers = owners({name: spec.elements for name, spec in engine.export_specs().items()}, case.world)
    mine = {name: tensor.clone() for name, tensor in engine.export(writers)}
    if mine:
        save_file(mine, home / f"{rank}.safetensors")
    (home / f"{rank}.json").write_text(
        json.dumps({"steps": steps, "critic": critic, "tensors": sorted(mine), "ahead": seen})
    )
    ranks.barrier()
    checkpointer.close()
    ranks.close()


def ahead(engine: PolicyEngine, infer: Callable[[], object]) -> bool:
    """Whether each layer is being gathered when the one before begins to compute."""
    seen: list[bool] = []

    def look(following: Any) -> None:
        groups = following._get_fsdp_state()._fsdp_param_groups
        seen.extend(group._all_gather_result is not None for group in groups)

    hooks = [
        block.register_forward_pre_hook(lambda *_, following=following: look(following))
        for block, following in pairwise(engine._model.blocks)
    ]
    infer()
    for hook in hooks:
        hook.remove()
    return bool(seen) and all(seen)


def routes(engine: PolicyEngine, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Experts for each token, by its id: no router would choose them."""
    shape = engine._model.routing
    assert shape is not None
    chosen = torch.from_numpy(ids[:, None] + np.arange(shape.chosen)) % shape.experts
    return rows_of(shape, [chosen] * len(shape.routed))


def valued(case: Case, ranks: RankGroup) -> tuple[float, float]:
    """A critic's gradient norm in its first update, and the sum of what it says after it."""
    engine = ValueEngine(Path(case.model), ModelOptions(optimizer=ADAM, attention=case.attention), ranks)
    tokens = batch(3, 4, seed=9, shared=True)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=ranks.data_rank, world_size=ranks.data_size,
        micro_batch_tokens=24, pack_length=16,
    )  # fmt: skip
    engine.accumulate(
        micros, lambda values, micro: (values - micro.targets / VOCABULARY).square().sum() / tokens.tokens
    )
    norm = engine.optimizer.step(1e-2)
    return norm, float(engine.values(micros, tokens.tokens).sum())


def run(home: Path, case: Case) -> dict[str, object]:
    """What the ranks of one case said."""
    place = home / case.name
    place.mkdir(parents=True)
    codes = ended([forked(rank_main, rank, place / "error", place, case) for rank in range(case.world)])
    said = [json.loads(file.read_text()) for file in sorted(place.glob("?.json"))]
    errors = words(place / "error", case.world)
    return {"name": case.name, "codes": codes, "errors": list(errors.values()), **asdict(case), "ranks": said}


def main() -> None:
    home = Path(sys.argv[1])
    torch.set_num_threads(1)
    for given in json.loads(sys.argv[2]):
        print(json.dumps(run(home, Case(**given))), flush=True)


if __name__ == "__main__":
    main()
