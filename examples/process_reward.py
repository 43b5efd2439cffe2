"""A process reward model trained beside the policy: how likely each prefix of an answer is to become a right one.

areal run examples/process_reward.yaml
areal check examples/process_reward.yaml --graph -
"""

import numpy as np
from areal.dataflow.builtin import LOSS_MASK, REWARDS, TOKEN_IDS
from areal.dataflow.stages import Column

SCORES = Column("process_scores", "token", "float32")  # log-odds that the answer will be right, before each token
WEIGHT = 0.5  # of what a token adds to that chance, beside the group's advantage


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """1.0 when the digits are sorted, else 0.0."""
    return float(completions.strip() == answer)


class ProcessReward:
    """The model; `areal check` never makes it."""

    def start(self, models):
        self.model = models.value_model("process_reward")

    def score(self, columns):
        return {"process_scores": self.model.values(columns)}

    def learn(self, columns):
        """Mean cross entropy of the chance at each sampled token and what became of the answer."""
        wanted = np.repeat(columns["rewards"], np.diff(columns.offsets))
        off = (chance(columns["process_scores"]) - wanted) * columns["loss_mask"]
        self.model.update(columns, off / max(columns["loss_mask"].sum(), 1), learning_rate=1e-3)
        return {}


def chance(scores):
    """The logistic function."""
    return 1 / (1 + np.exp(-scores.astype(np.float64)))


def compute_advantages(batch):
    """The reward less its group's mean, and what each token did to the chance; after the last the reward is known."""
    before, last = chance(batch.columns["process_scores"]), batch.offsets[1:] - 1
    after = np.append(before[1:], 0.0)
    after[last] = batch.rewards
    groups = np.unique(batch.group_ids, return_inverse=True)[1]
    mean = np.bincount(groups, batch.rewards) / np.bincount(groups)
    usual = np.repeat(batch.rewards - mean[groups], np.diff(batch.offsets))
    return np.where(batch.loss_mask, usual + WEIGHT * (after - before), 0.0)


def graph(ctx):
    """Scores before the advantages, which read them; the model learns after them."""
    own, rows, model = ProcessReward(), (TOKEN_IDS, LOSS_MASK), "process reward"
    score = ctx.stage(
        "process scores", own.score, reads=rows, writes=(SCORES,), kind="infer", model=model, start=own.start
    )
    learn = ctx.stage("update process reward", own.learn, reads=(*rows, REWARDS, SCORES), kind="update", model=model)
    return ctx.builtin.before("advantages", score).reading("advantages", SCORES).after("advantages", learn)
