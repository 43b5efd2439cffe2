"""The weights of a model's outputs are the gradients of the published losses: SFT, DPO, Bradley–Terry."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from areal.workflow.examples import Example
from areal_trainer.data.batch import TokenBatch
from areal_trainer.trainings.kinds import token_batch
from areal_trainer.trainings.objective import PairLoss, RowsObjective, bradley_terry, dpo, per_sequence, sft


def made(lengths: list[tuple[int, int]]) -> TokenBatch:
    """Sequences of (prompt, answer) tokens, two to a group."""
    examples = [Example(np.arange(p + a), np.array([False] * p + [True] * a)) for p, a in lengths]
    return token_batch(examples, [place // 2 for place in range(len(lengths))])


BATCH = made([(2, 3), (2, 4), (1, 2), (1, 5)])
RNG = np.random.default_rng(0)
LOGPROBS = -RNG.random(BATCH.tokens).astype(np.float64) * 3
REFERENCE = -RNG.random(BATCH.sequences) * 6


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_sft_is_the_mean_negative_log_likelihood(aggregation) -> None:
    mask = BATCH.trainable()
    sums = per_sequence(BATCH, np.where(mask, LOGPROBS, 0.0))
    counts = per_sequence(BATCH, mask.astype(np.float64))
    wanted = -sums.sum() / counts.sum() if aggregation == "token" else -(sums / counts).mean()
    found = sft(BATCH, aggregation)
    assert float((found.weights * LOGPROBS).sum()) == pytest.approx(wanted, rel=1e-12)
    assert not found.weights[~mask].any()


OPTIONS = [
    PairLoss(),
    PairLoss(beta=0.5, label_smoothing=0.2),
    PairLoss(beta=0.3, nll_weight=0.7),
    PairLoss(beta=0.2, loss="ipo"),
]


def at(logprobs, options) -> RowsObjective:
    return dpo(BATCH, logprobs, REFERENCE, options)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_weights_of_pairs_are_the_loss_differentiated(options) -> None:
    found = at(LOGPROBS, options)
    for token in range(BATCH.tokens):
        step = np.zeros(BATCH.tokens)
        step[token] = 1e-5
        slope = (at(LOGPROBS + step, options).loss - at(LOGPROBS - step, options).loss) / 2e-5
        assert found.weights[token] == pytest.approx(slope, abs=1e-8)


def test_each_option_of_pairs_changes_the_loss() -> None:
    losses = [at(LOGPROBS, options).loss for options in [*OPTIONS, PairLoss(beta=0.5)]]
    assert len({round(loss, 9) for loss in losses}) == len(losses)


def test_at_the_start_model_a_pair_costs_log_two_and_ipo_its_margin() -> None:
    sums = per_sequence(BATCH, np.where(BATCH.trainable(), LOGPROBS, 0.0))
    same = dpo(BATCH, LOGPROBS, sums, PairLoss())
    assert same.loss == pytest.approx(math.log(2), rel=1e-12)
    assert same.figures["margin"] == pytest.approx(0.0, abs=1e-12)
    assert dpo(BATCH, LOGPROBS, sums, PairLoss(beta=0.1, loss="ipo")).loss == pytest.approx(25.0)


def test_a_pair_with_an_empty_side_has_no_weight() -> None:
    batch = made([(2, 3), (2, 4), (5, 0), (1, 5)])
    logprobs = np.full(batch.tokens, -1.0)
    found = dpo(batch, logprobs, np.zeros(4), PairLoss())
    assert found.figures["pairs"] == 1
    assert not found.weights[batch.offsets[2] :].any()
    assert found.weights[batch.trainable() & (batch.sequence_of < 2)].all()


SCORED = token_batch(
    [Example(np.arange(n), np.ones(n, np.bool_)).scored() for n in (3, 4, 2, 6, 5, 5)], [0, 0, 1, 1, 2, 2]
)
SCORES = RNG.normal(size=SCORED.tokens) * SCORED.trainable()
MARGINS = np.array([0.0, 0.7, -0.2])


@pytest.mark.parametrize("centering", [0.0, 0.3])
def test_bradley_terry_is_the_published_loss_and_its_weights_the_loss_differentiated(centering) -> None:
    chosen, rejected = (SCORES[SCORED.offsets[1:] - 1][side::2] for side in (0, 1))
    wins = 1 / (1 + np.exp(-(chosen - rejected - MARGINS)))
    wanted = (-np.log(wins) + centering * (chosen + rejected) ** 2).mean()
    found = bradley_terry(SCORED, SCORES, MARGINS, centering)
    assert found.loss == pytest.approx(wanted, rel=1e-12)
    assert found.figures["pair_accuracy"] == pytest.approx((chosen > rejected).mean())
    assert found.figures["margin"] == pytest.approx((chosen - rejected).mean())
    for token in range(SCORED.tokens):
        step = np.zeros(SCORED.tokens)
        step[token] = 1e-5
        up, down = (bradley_terry(SCORED, SCORES + sign * step, MARGINS, centering).loss for sign in (1, -1))
        assert found.weights[token] == pytest.approx((up - down) / 2e-5, abs=1e-8)
    assert found.weights.any()
