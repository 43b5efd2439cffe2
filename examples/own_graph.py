"""A stage of one's own in the step: a second reward, made in the trainer from columns of the batch.

areal run examples/own_graph.yaml
areal check examples/own_graph.yaml --graph -
"""

import numpy as np
from areal.dataflow.builtin import LOSS_MASK, REWARDS
from areal.dataflow.stages import Column

TOTAL = Column("total_rewards", "sequence", "float64")


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """1.0 when the digits are sorted, else 0.0."""
    return float(completions.strip() == answer)


def with_brevity(columns):
    """The reward less 0.01 for each sampled token. Sequence s owns the entries offsets[s]:offsets[s+1]."""
    sampled = np.add.reduceat(columns["loss_mask"].astype(np.float64), columns.offsets[:-1])
    return {"total_rewards": columns["rewards"] - 0.01 * sampled}


def graph(ctx):
    """The job's usual graph, whose advantages are made of the total instead of the reward."""
    brevity = ctx.stage("brevity", with_brevity, reads=(REWARDS, LOSS_MASK), writes=(TOTAL,))
    return ctx.builtin.before("advantages", brevity).reading("advantages", TOTAL, instead_of=REWARDS)
