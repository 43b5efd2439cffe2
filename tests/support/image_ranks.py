"""A program: two steps of a tiny model on sequences of which one group has images, by one rank and by two.

`python -m support.image_ranks HOME FAMILY` prints a JSON line for each: losses, gradient norms and log-probabilities.
"""

import json
import sys
from pathlib import Path

import numpy as np
import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl
import transformers.models.qwen3_vl.modeling_qwen3_vl  # noqa: F401
from areal_trainer.data.batch import columns
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.trainings.kinds import Learner
from support.forked_ranks import ended, forked, joined
from support.tiny_vision import samples_of, shape_of, vision_model


def rank_main(rank: int, home: Path, world: int) -> None:
    ranks = joined(rank, home / f"store{world}", world)
    shape = shape_of(home / "model")
    tokens = columns([one for one in samples_of(shape) if one.key.group in (0, 2)], 32, shape)
    engine = PolicyEngine(home / "model", ModelOptions(optimizer=AdamWOptions(epsilon=1e-4)), ranks)
    learner = Learner(engine, lambda micro: engine.forward(micro)[0], 64, 48)
    told: list[float] = []
    for step in range(2):
        weights = np.where(tokens.trainable(), np.random.default_rng(step).normal(0, 0.02, tokens.tokens), 0.0)
        update = learner.update(tokens, weights, 1e-3)
        told += [update.loss, update.grad_norm]
    told += learner.outputs(tokens).tolist()
    (home / f"{world}.{rank}.json").write_text(json.dumps(told))
    ranks.close()


def make(_: int, path: Path, family: str) -> None:
    vision_model(path, family)


if __name__ == "__main__":
    home = Path(sys.argv[1])
    (home / "model").mkdir()
    assert ended([forked(make, 0, home / "error", home / "model", sys.argv[2])]) == [0]
    for world in (1, 2):
        codes = ended([forked(rank_main, rank, home / "error", home, world) for rank in range(world)])
        assert codes == [0] * world, codes
        print((home / f"{world}.0.json").read_text())
