"""The queueing model against AReaL's published throughputs (arXiv 2505.24298): of two rows of a table, all its others.

The synchronous row gives the time from a batch's start to its end (its longest answer, then the training), the mean of
the rows in which nobody waits gives the slower of generation and training. What lies between follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

import pytest
from areal_view.why.pace import Constants, step_s

FIGURE_5C = {0: 128.7, 1: 269.3, 2: 356.6, 4: 356.6, 8: 371.7, 16: 382.4, 10_000: 396.8}
"""Thousand tokens a second by η: 1.5B, mathematics, 512 prompts of 16 answers of up to 27,648 tokens."""

TABLE_7 = {0: 27.1, 1: 47.8, 2: 47.8, 4: 49.0, 8: 51.5, 16: 52.0}
"""The same on 8 GPUs, up to 8,192 tokens, 64 prompts."""

BATCH = 64
PLATEAU = 4  # from this η on no process waits for the gate


def _throughput(published: Mapping[int, float]) -> dict[int, float]:
    """What the model says for each η, from two of the published figures."""
    plateau = mean(figure for eta, figure in published.items() if eta >= PLATEAU)
    step, alone = 1.0 / plateau, 1.0 / published[0]  # seconds of a thousand tokens
    shortest = 0.1 * (alone - step)
    tail = [shortest + (alone - step - shortest) * (rank / (BATCH - 1)) ** 4 for rank in range(BATCH)]
    run = Constants(
        batch=BATCH,
        ahead=0,
        staleness=0,
        admission_order=True,
        max_concurrent=10**6,
        servers=1,
        generation_s=0.99 * step / BATCH,
        latencies_s=tail,
        work_s=[step],
        swap_s=0.0,
        hand_over_s=0.0,
        evaluation_s=0.0,
    )
    return {
        eta: 1.0 / step_s(Constants(**{**vars(run), "ahead": min(eta, 60), "staleness": min(eta, 60)}))
        for eta in published
    }


@pytest.mark.parametrize("published", [FIGURE_5C, TABLE_7], ids=["figure 5c", "table 7"])
def test_throughput_by_staleness_is_the_published_one_within_ten_percent(published: dict[int, float]) -> None:
    modelled = _throughput(published)
    errors = {eta: modelled[eta] / published[eta] - 1.0 for eta in published}
    assert max(abs(error) for error in errors.values()) < 0.10, errors


def test_asynchrony_brings_the_published_factor_of_2_77() -> None:
    modelled = _throughput(FIGURE_5C)
    assert modelled[4] / modelled[0] == pytest.approx(2.77, rel=0.10)
