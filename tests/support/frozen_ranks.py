"""Two forked ranks, the policy's and one of frozen models. Run as a program: prints one JSON line.

Forked after torch is imported. The policy's rank also holds the model itself, and compares.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from areal.dataflow.builtin import LOSS_MASK, REWARDS, TOKEN_IDS, Needs, policy_gradient
from areal.dataflow.stages import Column, Place, Stage
from areal.errors import InfraError
from areal.observe.waits import WaitRegistry
from areal_trainer.actor import Actor, ActorOptions
from areal_trainer.algorithms.advantages import AdvantageOptions
from areal_trainer.algorithms.policy import KLLoss, PolicyOptions
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.engine import Engine, EngineOptions
from areal_trainer.engine.group import Ranks
from areal_trainer.engine.schedule import Schedule
from areal_trainer.frozen_model import FrozenModel, OnSameRanks, Question
from areal_trainer.objective import ObjectiveOptions
from areal_trainer.own_ranks import Held, OwnRanks, serve
from support.trainer_parts import batch


def judge(columns):
    """A second reward: the mean of a sequence's sampled token ids."""
    firsts = columns.offsets[:-1]
    sampled = np.add.reduceat(columns["loss_mask"].astype(np.float64), firsts)
    sums = np.add.reduceat(columns["token_ids"] * columns["loss_mask"].astype(np.float64), firsts)
    return {"total": columns["rewards"] + sums / sampled}


def advantages_by(run, engine: Engine):
    """The advantages of a step whose rewards are replaced by a stage that does `run`; the usual ones without."""
    graph = policy_gradient(Needs(proximal=False, kl=None))
    total = Column("total", "sequence", "float64")
    if run is not None:
        stage = Stage("judge", "compute", (REWARDS, TOKEN_IDS, LOSS_MASK), (total,), run=run, placement="own")
        graph = graph.before("advantages", stage).reading("advantages", total, instead_of=REWARDS)
    options = ActorOptions(ObjectiveOptions(), AdvantageOptions(), Schedule(1e-3, 0, "constant"))
    return Actor(engine, options, None, own_graph=graph).advantages(batch(5, 4)).tokens


def steps_beside(reference: FrozenModel, model: Path, ranks: Ranks, place: Place) -> list[list[float]]:
    """Loss, gradient norm and KL of three steps that are pulled back to the reference."""
    pulled = ObjectiveOptions(policy=PolicyOptions(kl=KLLoss(0.5)))
    rate = Schedule(1e-2, 0, "constant")
    options = ActorOptions(pulled, AdvantageOptions(), rate, micro_batch_tokens=32, reference_placement=place)
    actor = Actor(Engine(model, EngineOptions(), ranks), options, None, reference=reference)
    found = []
    for step in range(3):
        given = SimpleNamespace(step=step, max_steps=3, tokens=batch(5, 4, seed=step), micro_batch_divisor=1)
        figures = actor.update(given, actor.advantages(given.tokens))
        found.append([figures.loss.loss, figures.grad_norm, figures.loss.reference_kl])
    return found


def hold(model: Path) -> int:
    """The rank of frozen models: the model, and one that ends its process."""
    ranks = Ranks(frozen=1)

    def load() -> dict[str, Held]:
        engine = Engine(model, EngineOptions(), ranks)
        return {"reference": Held(engine.logprobs, engine.vocabulary), "dies": Held(lambda *_: os._exit(9), 24)}

    return int(serve(ranks, load, pack_length=None, stages={"judge": judge}))


def ask(model: Path) -> dict[str, object]:
    """The policy's rank."""
    ranks = Ranks(frozen=1)
    own = OwnRanks(ranks, WaitRegistry("trainer"), deadline_s=60.0)
    engine = Engine(model, EngineOptions(), ranks)
    beside = OnSameRanks(engine.logprobs)
    own.ready(60.0)
    tokens = batch(5, 4)
    cut = partial(rank_micro_batches, rank=0, world_size=1, micro_batch_tokens=64, pack_length=None)
    question = Question(tokens, np.arange(tokens.sequences) != 2, 32, cut)
    answer, here = own.model("reference").ask(question), beside.ask(question)()
    there = answer()
    asked, made, usual = (advantages_by(run, engine) for run in (own.stage("judge"), judge, None))
    far = steps_beside(own.model("reference"), model, ranks, "own")
    near = steps_beside(beside, model, ranks, "same")
    try:
        own.model("dies").ask(question)()
        died = ""
    except InfraError as error:
        died = error.message
    own.close()
    ranks.close()
    return {
        "world": ranks.world_size, "vocabulary": own.vocabulary["reference"], "lowest": float(here.min()),
        "apart": float((there - here).abs().max()), "died": died,
        "far": far, "near": near,
        "judged": float(np.abs(asked - made).max()), "moved": float(np.abs(asked - usual).max()),
    }  # fmt: skip


def main(model: Path, port: str) -> None:
    os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo")
    child = os.fork()
    if not child:
        os.environ["RANK"] = "1"
        os._exit(hold(model))
    os.environ["RANK"] = "0"
    found = ask(model)
    print(json.dumps({**found, "code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
