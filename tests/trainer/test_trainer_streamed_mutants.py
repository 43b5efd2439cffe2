"""Mutation suite of the step that is taken in parts: what it divides by, what it counts once, what it forgets.

Each mutant is one wrong expression of the product. The plain step of the code as it is says what is right; a mutant
must change the gradient, a figure or a token's record of the step in parts, for one of a few algorithms at least.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from areal_trainer import actor, gradient_sums, objective
from areal_trainer.actor import Actor
from areal_trainer.algorithms import policy
from areal_trainer.engine.optimizer import ShardedAdamW
from areal_trainer.gradient_sums import GradientSums
from areal_trainer.objective import PolicyObjective
from support.streamed_steps import PARTS, Trained, actor_of, batch_of, difference, spec_of, trained

CLOSE = 1e-6
ALGORITHMS: dict[str, dict[str, Any]] = {
    "token": {"name": "GRPO", "kl": {"coefficient": 0.1}, "zeroVariance": "mask"},
    "constant": {"name": "DrGRPO", "zeroVariance": "mask"},
    "sequence": {"name": "GSPO", "zeroVariance": "mask"},
}


@dataclass(frozen=True)
class Mutant:
    """One expression of a function, and what stands there instead."""

    owner: Any
    function: str
    right: str
    wrong: str


MUTANTS = {
    "tokens of the whole batch, trained or not": Mutant(policy, "divisor", "trained.sum()", "trained.size"),
    "sequences of the whole batch, trained or not": Mutant(
        policy, "divisor", "np.unique(sequence[trained])", "np.unique(sequence)"
    ),
    "sequences where tokens count": Mutant(policy, "divisor", 'aggregation == "token"', 'aggregation == "none"'),
    "tokens where sequences count": Mutant(policy, "divisor", 'aggregation == "token"', 'aggregation != "none"'),
    "a part divides by its own count": Mutant(policy, "token_weights", "1 if summed else max(", "max("),
    "a sequence's own length is left out": Mutant(
        policy, "token_weights", "(count * tokens[sequence[trained]])", "count"
    ),
    "a part's KL divides by its own count": Mutant(PolicyObjective, "of", "1 if summed else max(int", "max(int"),
    "the last part's count": Mutant(
        Actor, "_updated", "divisor(predicted, tokens", "divisor(predicted & fresh[tokens.sequence_of], tokens"
    ),
    "no part's count": Mutant(Actor, "_updated", ", divisor=count", ""),
    "never divided": Mutant(ShardedAdamW, "step", "divisor > 1", "divisor < 1"),
    "divided twice": Mutant(ShardedAdamW, "step", "float(divisor)", "float(divisor) ** 2"),
    "clipped before it is divided": Mutant(
        ShardedAdamW, "step", "self._norm(list(gradients.values()), copies, loss)",
        "self._norm(list(gradients.values()), copies, loss) * divisor",
    ),
    "begun groups are taken again": Mutant(
        Actor, "update", "advantages.trained & ~np.isin(batch.tokens.group_ids, begun)", "advantages.trained"
    ),
    "only begun groups are taken again": Mutant(Actor, "update", "~np.isin(", "np.isin("),
    "figures of the last part alone": Mutant(
        Actor, "_updated", "LossStatistics(device) if sums is None else sums.statistics", "LossStatistics(device)"
    ),
    "tokens of parts are not recorded": Mutant(GradientSums, "keep", "part.kept is not None", "part.kept is None"),
    "tokens are recorded where the part had them": Mutant(
        GradientSums, "keep", "part.place(whole)", "np.arange(part.tokens.tokens)"
    ),
    "groups that are not the batch's count": Mutant(
        GradientSums, "fit", "step != self.step or self.groups != sorted(begun)", "step != self.step"
    ),
    "another step's groups count": Mutant(
        GradientSums, "fit", "step != self.step or self.groups != sorted(begun)", "self.groups != sorted(begun)"
    ),
    "what was thrown away stays in the gradient": Mutant(Actor, "_forget", "self.engine.optimizer.forget()", "pass"),
}  # fmt: skip


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The product with the mutant in it."""
    right = getattr(mutant.owner, mutant.function)
    text = textwrap.dedent(inspect.getsource(right))
    assert text.count(mutant.right) == 1, f"{mutant.right!r} stands {text.count(mutant.right)} times there"
    made: dict[str, Any] = {}
    exec(compile(text.replace(mutant.right, mutant.wrong), mutant.function, "exec"), right.__globals__, made)
    users = [mutant.owner] + [one for one in (actor, objective) if getattr(one, mutant.function, None) is right]
    for user in users:
        setattr(user, mutant.function, made[mutant.function])
    try:
        yield
    finally:
        for user in users:
            setattr(user, mutant.function, right)


def same(plain: Trained, parts: Trained, begun: int) -> bool:
    """Whether a step in parts is the plain one."""
    losses = zip(vars(plain.figures.loss).values(), vars(parts.figures.loss).values(), strict=True)
    return (
        difference(plain.gradients, parts.gradients) < CLOSE
        and all(other == pytest.approx(one, rel=1e-5, abs=1e-7) for one, other in losses)
        and np.array_equal(plain.tokens.flags, parts.tokens.flags)
        and np.allclose(plain.tokens.logprobs, parts.tokens.logprobs, rtol=1e-5, atol=1e-6)
        and parts.figures.begun == begun
    )


@pytest.fixture(scope="module")
def right(model_path, ranks, tmp_path_factory) -> dict[str, Trained]:
    """The plain step of each algorithm."""
    home = tmp_path_factory.mktemp("plain")
    return {name: trained(actor_of(spec_of(own), model_path, home, ranks), ()) for name, own in ALGORITHMS.items()}


@pytest.fixture
def holds(right, model_path, ranks, tmp_path):
    """Whether the step in parts is the plain one everywhere; asks no further than it must."""

    def ask() -> bool:
        def made(own: dict[str, Any], **begun: Any) -> Trained:
            return trained(actor_of(spec_of(own), model_path, tmp_path, ranks), PARTS, **begun)

        if not all(same(right[name], made(own), 5) for name, own in ALGORITHMS.items()):
            return False
        if not same(right["token"], made(ALGORITHMS["token"], begun=(0, 1, 4)), 0):
            return False
        late = actor_of(spec_of(ALGORITHMS["token"]), model_path, tmp_path, ranks)
        for part in PARTS:  # of a step that never came
            left = replace(batch_of(part, whole=False), step=2)
            late.accumulate(left, late.advantages(left.tokens))
        return same(right["token"], trained(late, (), begun=[group for part in PARTS for group in part]), 0)

    return ask


def test_the_step_in_parts_is_the_plain_one(holds):
    assert holds()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_denominator_or_count_is_noticed(holds, name):
    with planted(MUTANTS[name]):
        assert not holds()


def test_what_was_planted_is_gone_afterwards():
    before = gradient_sums.GradientSums.fit
    with planted(MUTANTS["another step's groups count"]):
        assert gradient_sums.GradientSums.fit is not before
    assert gradient_sums.GradientSums.fit is before
