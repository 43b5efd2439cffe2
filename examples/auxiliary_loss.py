"""An auxiliary loss on a column of one's own: beside the policy's loss the group's shortest right answer is imitated.

areal run examples/auxiliary_loss.yaml
areal check examples/auxiliary_loss.yaml --graph -
"""

import numpy as np
from areal.dataflow.builtin import GROUPS, REWARDS
from areal.dataflow.stages import Column

BEST = Column("best", "sequence", "float32")  # 1 for the answer of each group that is imitated, else 0
WEIGHT = 0.05


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """1.0 when the digits are sorted, else 0.0."""
    return float(completions.strip() == answer)


def pick(columns):
    """The shortest of each group's answers with a reward of 1."""
    best = np.zeros(len(columns["rewards"]), np.float32)
    lengths = np.diff(columns.offsets)
    for group in np.unique(columns["group_ids"]):
        right = np.flatnonzero((columns["group_ids"] == group) & (columns["rewards"] == 1.0))
        if len(right):
            best[right[lengths[right].argmin()]] = 1.0
    return {"best": best}


def compute_loss(batch, outputs):
    """The usual loss of each token, less the log-likelihood of the tokens that are imitated."""
    return outputs.loss - WEIGHT * batch.columns["best"] * outputs.logprobs


def graph(ctx):
    """The column is made after the advantages, and the policy's update reads it."""
    picked = ctx.stage("pick", pick, reads=(REWARDS, GROUPS), writes=(BEST,))
    return ctx.builtin.after("advantages", picked).reading("update policy", BEST)
