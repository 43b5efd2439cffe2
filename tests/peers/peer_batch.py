"""A random batch as other projects hold one, padded [sequences, places], and what our functions say of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from areal_trainer.algorithms.advantages import gae, normalise_advantages
from areal_trainer.algorithms.baseline import BaselineOptions, normalised_rewards
from areal_trainer.algorithms.policy import Aggregation, PolicyOptions, policy_loss, token_weights
from areal_trainer.algorithms.ratio import behaviour_weight
from areal_trainer.algorithms.rejection import RejectionRule, rejected
from areal_trainer.data.batch import TokenBatch
from torch import Tensor

GROUP, LENGTH, VOCABULARY = 4, 7, 9


class PeerBatch:
    """Two groups of four answers. `holes` puts tokens of a tool between sampled ones; else answers are whole."""

    def __init__(self, seed: int, *, holes: bool = True, far: float = 0.3) -> None:
        random = np.random.default_rng(seed)
        self.sequences = 2 * GROUP
        lengths = random.integers(2, LENGTH + 1, self.sequences)
        mask = np.arange(LENGTH) < lengths[:, None]
        if holes:
            mask &= random.random(mask.shape) < 0.8
            mask[:, 0], mask[:, 1] = True, True
        self.mask = torch.from_numpy(mask)
        self.groups = np.repeat([5, 2], GROUP)
        self.rewards = torch.from_numpy(random.normal(size=self.sequences))
        self.theta = torch.from_numpy(-random.exponential(1.0, mask.shape)).requires_grad_(True)

        def beside() -> Tensor:
            return torch.from_numpy((self.theta.detach().numpy() + random.normal(0, far, mask.shape)).clip(max=-1e-3))

        self.proximal, self.behaviour, self.reference = beside(), beside(), beside()
        self.advantages = torch.from_numpy(random.normal(size=mask.shape))
        self.by_sequence = torch.from_numpy(random.normal(size=(self.sequences, 1))).expand(mask.shape).contiguous()
        self.values, self.returns = (torch.from_numpy(random.normal(size=mask.shape)) for _ in range(2))
        self.new_values = (self.values + torch.from_numpy(random.normal(size=mask.shape))).requires_grad_(True)
        self.logits = torch.from_numpy(random.normal(size=(*mask.shape, VOCABULARY))).requires_grad_(True)
        self.labels = torch.from_numpy(random.integers(0, VOCABULARY, mask.shape))
        self.scores = torch.from_numpy(random.normal(size=(4, 2))).requires_grad_(True)
        self.versions = torch.from_numpy(random.integers(0, 5, mask.shape))

    @property
    def row(self) -> Tensor:
        """The sequence of each sampled token."""
        return torch.arange(self.sequences)[:, None].expand(self.mask.shape)[self.mask]

    @property
    def float_mask(self) -> Tensor:
        return self.mask.double()

    @property
    def token_rewards(self) -> Tensor:
        """The outcome on each sequence's last sampled token."""
        found = torch.zeros(self.mask.shape, dtype=torch.float64)
        last = (self.mask * torch.arange(1, LENGTH + 1)).argmax(1)
        found[torch.arange(self.sequences), last] = self.rewards
        return found

    @property
    def offsets(self) -> np.ndarray[Any, Any]:
        return np.arange(self.sequences + 1) * LENGTH

    def padded(self, values: Any) -> Tensor:
        """Of sampled tokens to [sequences, places]."""
        found = torch.zeros(self.mask.shape, dtype=torch.float64)
        found[self.mask] = torch.as_tensor(values, dtype=torch.float64)
        return found

    def summed(self, tokens: Tensor, aggregation: Aggregation = "token", horizon: int | None = None) -> Tensor:
        """Aggregated as our objective does it."""
        weights = token_weights(self.mask.flatten().numpy(), self._rows, aggregation, horizon)
        return (tokens * torch.from_numpy(weights)[self.mask.flatten()]).sum()

    def policy(self, options: PolicyOptions, advantages: Tensor | None = None, **how: Any) -> Tensor:
        """Our loss: of the behaviour policy where `coupled` (the proximal one is then it), else decoupled."""
        proximal, coupled = self.proximal[self.mask], how.pop("coupled", True)
        proximal = self.theta.detach()[self.mask] if how.pop("on_policy", False) else proximal
        behaviour = proximal if coupled else self.behaviour[self.mask]
        chosen = (self.advantages if advantages is None else advantages)[self.mask]
        terms = policy_loss(self.theta[self.mask], proximal, behaviour, chosen, self.row, options)
        return self.summed(terms.loss, **how)

    def outcomes(self, **options: Any) -> Tensor:
        """Our advantage of each sequence, on its sampled tokens."""
        chosen = BaselineOptions(**{"mask_zero_variance": False, **options})
        counted = np.ones(self.sequences, bool)
        found = normalised_rewards(self.rewards.numpy(), self.groups, np.arange(self.sequences), counted, chosen)
        return torch.from_numpy(found.values)[:, None] * self.mask

    def whitened(self, advantages: Tensor) -> Tensor:
        groups = np.zeros(self.mask.numel(), np.int64)
        flat = advantages.numpy().ravel()
        found = normalise_advantages(flat, self.mask.numpy().ravel(), groups, "batch")
        return torch.from_numpy(found).reshape(self.mask.shape)

    def estimated(self, gamma: float, lam: float, *, values: bool = True) -> tuple[Tensor, Tensor]:
        """Our GAE of the outcomes: advantages and returns."""
        given = self.values.numpy().ravel() if values else None
        mask = self.mask.numpy().ravel()
        found = gae(self.token_rewards.numpy().ravel(), given, mask, self.offsets, gamma=gamma, lam=lam)
        advantages, returns = (torch.from_numpy(each).reshape(self.mask.shape) for each in found)
        return advantages, returns

    def kept(self, **rule: Any) -> Tensor:
        """Which sampled tokens a rejection keeps, [sequences, places]."""
        out = rejected(self.proximal[self.mask], self.behaviour[self.mask], self.row, [RejectionRule(**rule)])
        return self.padded((~out).double())

    def weight(self, level: Any, truncate: Any = None) -> Tensor:
        distance = (self.proximal - self.behaviour)[self.mask]
        return self.padded(behaviour_weight(distance, self.row, level, truncate))

    def tokens(self) -> TokenBatch:
        """The batch as ours; each sequence begins with a token of a prompt."""
        width = LENGTH + 1
        mask = np.concatenate([np.zeros((self.sequences, 1), bool), self.mask.numpy()], axis=1).ravel()
        nothing = np.zeros(len(mask))
        return TokenBatch(
            nothing.astype(np.int64), nothing.astype(np.float32), mask, nothing.astype(np.int64),
            np.arange(self.sequences + 1) * width, self.groups, np.arange(self.sequences),
            self.rewards.numpy(), np.zeros(self.sequences, bool),
        )  # fmt: skip

    def of_tokens(self, weights: np.ndarray[Any, Any]) -> Tensor:
        """What `tokens()` has on sampled tokens."""
        return torch.from_numpy(weights.reshape(self.sequences, LENGTH + 1)[:, 1:])[self.mask]

    @property
    def _rows(self) -> np.ndarray[Any, Any]:
        return np.repeat(np.arange(self.sequences), LENGTH)


def slopes(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Both without their value: where a loss is another function with the same gradient."""
    return ours - ours.detach(), theirs - theirs.detach()


def config(**fields: Any) -> Any:
    """Another project's configuration, with `get` as theirs have."""
    found = SimpleNamespace(**fields)
    found.get = lambda name, usual=None: fields.get(name, usual)
    return found
