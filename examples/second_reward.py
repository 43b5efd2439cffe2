"""A second reward model on ranks of its own: its scores are added to the rewards before the advantages.

areal run examples/second_reward.yaml
areal check examples/second_reward.yaml --graph -
"""

from functools import cache

import numpy as np
from areal.dataflow.builtin import REWARDS, TOKEN_IDS
from areal.dataflow.stages import Column

MODEL = "runs/digits-scores/model"  # of reward_model.yaml; a path that the trainer's processes can read
TOTAL = Column("total_rewards", "sequence", "float64")


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """1.0 when the digits are sorted, else 0.0."""
    return float(completions.strip() == answer)


@cache
def _model():
    """Loaded by the first call, so on the stage's ranks alone."""
    import torch
    from transformers import AutoModelForSequenceClassification

    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    return AutoModelForSequenceClassification.from_pretrained(MODEL).to(device).eval()


def with_scores(columns):
    """The reward and a tenth of the model's score. Sequence s owns the entries offsets[s]:offsets[s+1]."""
    import torch

    model = _model()
    rows = [ids[None] for ids in np.split(columns["token_ids"], columns.offsets[1:-1])]
    with torch.no_grad():
        scores = [float(model(torch.tensor(row, device=model.device)).logits[0, 0]) for row in rows]
    return {"total_rewards": columns["rewards"] + 0.1 * np.array(scores)}


def graph(ctx):
    """The job's usual graph, whose advantages are made of the total instead of the reward."""
    second = ctx.stage("second reward", with_scores, reads=(REWARDS, TOKEN_IDS), writes=(TOTAL,), placement="own")
    return ctx.builtin.before("advantages", second).reading("advantages", TOTAL, instead_of=REWARDS)
