"""The objective of one batch: gathers the loss's columns by token and makes the loss of each mini-batch.

Owns what is computed once for a whole batch or mini-batch (aggregation weights, M2PO's mask), so that micro-batches,
packing and ranks change nothing. Every rank builds it from the same batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from areal.errors import DataError
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.algorithms.policy import Aggregation, PolicyOptions, policy_loss, token_weights
from areal_trainer.algorithms.ratio import Proximal, log_linear
from areal_trainer.algorithms.rejection import second_moment_mask
from areal_trainer.algorithms.statistics import LossStatistics
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, sent
from areal_trainer.engine.engine import LossFunction
from areal_trainer.figures import FigureMeans
from areal_trainer.recording import TrainedTokensBuffer


@dataclass(frozen=True)
class ObjectiveOptions:
    """What is minimised."""

    policy: PolicyOptions = field(default_factory=PolicyOptions)
    proximal: Proximal = "trainingPass"
    aggregation: Aggregation = "token"
    horizon: int | None = None  # H of the constant aggregation
    second_moment: float | None = None  # M2PO's threshold


@dataclass(frozen=True)
class LossBatch:
    """What a `compute_loss(batch, outputs)` is given of a micro-batch: constants, one entry a trained token.

    A sequence's tokens are all in the same micro-batch.
    """

    advantages: Tensor
    behaviour: Tensor  # log-probabilities of the policy that made the token
    proximal: Tensor  # log-probabilities of the weights at the start of the step, or what stands for them
    reference: Tensor | None  # log-probabilities of the reference model, when the job has one
    versions: Tensor  # the policy version of the token
    sequence: Tensor  # which sequence of the batch the token belongs to
    token_ids: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)  # that own stages wrote for it, by name
    figures: dict[str, Any] = field(default_factory=dict)  # to write into: numbers that the step shows by name


@dataclass(frozen=True)
class LossOutputs:
    """What the model says of the same tokens, with gradient, and the loss that the job would have without the hook."""

    logprobs: Tensor
    entropy: Tensor
    loss: Tensor  # of each token, rejected ones 0, without KL and entropy


ComputeLoss = Callable[[LossBatch, LossOutputs], Tensor]
"""(constants, outputs) → the loss of each token, [tokens]; it is aggregated as `algorithm.lossAggregation` says."""


class PolicyObjective:
    """The loss of a batch's mini-batches."""

    def __init__(
        self,
        tokens: TokenBatch,
        advantages: Advantages,
        options: ObjectiveOptions,
        *,
        step: int,
        device: torch.device,
        proximal: Tensor | None = None,
        reference: Tensor | None = None,
        compute_loss: ComputeLoss | None = None,
        own: Mapping[str, NDArray[Any]] | None = None,
        figures: FigureMeans | None = None,
    ) -> None:
        """`own` are columns of a recipe's stages, by token or by sequence, for its `compute_loss`.

        What that names goes into `figures`, those of this objective alone where none are given.
        """
        if options.proximal == "recompute" and proximal is None:
            raise ValueError("this objective needs the log-probabilities from before the first update")
        self._options = options
        self._step = step
        self._device = device
        self._compute_loss = compute_loss
        self.figures = figures or FigureMeans()
        self._sequence = tokens.sequence_of
        self._behaviour = tokens.behaviour_logprobs
        self._proximal = proximal
        self._advantages = torch.from_numpy(advantages.tokens.astype(np.float32)).to(device)
        self._on_device = {
            "behaviour": torch.from_numpy(tokens.behaviour_logprobs).to(device),
            "versions": torch.from_numpy(tokens.versions).to(device),
            "sequence": torch.from_numpy(self._sequence).to(device),
            "token_ids": torch.from_numpy(tokens.token_ids).to(device),
        }
        self._own = {name: torch.tensor(column, device=device) for name, column in (own or {}).items()}
        self._by_token = tokens.tokens
        self._centre = None if proximal is None else proximal.to(device)
        self._reference = None if reference is None else reference.to(device)

    def of(
        self,
        trained: NDArray[np.bool_],
        statistics: LossStatistics,
        kept: TrainedTokensBuffer | None = None,
        *,
        summed: bool = False,
    ) -> LossFunction:
        """The loss of the mini-batch whose tokens are `trained`, [tokens]; it adds up over micro-batches and ranks.

        What is computed of each token goes into `kept`, when there is one. `summed`: it isn't divided by the count of
        what is trained, `divisor`, so that it adds up over the parts of a batch, too.
        """
        options = self._options
        factors = token_weights(trained, self._sequence, options.aggregation, options.horizon, summed=summed)
        weights = torch.from_numpy(factors.astype(np.float32)).to(self._device)
        count = 1 if summed else max(int(trained.sum()), 1)
        dropped = self._dropped(trained)

        def loss(logprobs: Tensor, entropy: Tensor, micro: MicroBatch) -> Tensor:
            place = sent(micro.token_index, logprobs.device)
            batch = self._batch(place, logprobs)
            terms = policy_loss(
                logprobs,
                batch.proximal,
                batch.behaviour,
                batch.advantages,
                batch.sequence,
                options.policy,
                reference=batch.reference,
                entropy=entropy,
                dropped=None if dropped is None else dropped[place],
            )
            if self._compute_loss is not None:
                own = checked_loss(self._compute_loss(batch, LossOutputs(logprobs, entropy, terms.loss)), logprobs)
                self.figures.add(batch.figures, logprobs.numel())
                terms = replace(terms, loss=own, regulariser=torch.zeros_like(own))
            measured = logprobs.detach() if self._centre is None else batch.proximal
            same = batch.versions == self._step
            statistics.add(terms, logprobs.detach(), measured, batch.behaviour, entropy.detach(), same)
            if kept is not None:
                kept.add(place, measured, entropy.detach(), terms)
            return (terms.loss * weights[place]).sum() + terms.regulariser.sum() / count

        return loss

    def _batch(self, place: Tensor, logprobs: Tensor) -> LossBatch:
        gathered: dict[str, Any] = {name: column[place] for name, column in self._on_device.items()}
        return LossBatch(
            advantages=self._advantages[place],
            proximal=self._proximal_of(place, logprobs, gathered["behaviour"], gathered["versions"]),
            reference=None if self._reference is None else self._reference[place],
            columns={
                name: column[place if len(column) == self._by_token else gathered["sequence"]]
                for name, column in self._own.items()
            },
            **gathered,
        )

    def _proximal_of(self, place: Tensor, logprobs: Tensor, behaviour: Tensor, versions: Tensor) -> Tensor:
        kind = self._options.proximal
        if kind == "behaviour":
            return behaviour
        if kind == "loglinear":
            return log_linear(logprobs, behaviour, versions, self._step)
        return logprobs.detach() if self._centre is None else self._centre[place]

    def _dropped(self, trained: NDArray[np.bool_]) -> Tensor | None:
        """[tokens] bool: what M2PO's mask leaves out of this mini-batch."""
        threshold = self._options.second_moment
        if threshold is None:
            return None
        if self._proximal is None:
            raise ValueError("the second-moment mask needs the proximal log-probabilities of the whole mini-batch")
        dropped = np.zeros(len(trained), np.bool_)
        places = np.flatnonzero(trained)
        kept = second_moment_mask(self._proximal.cpu().numpy()[places], self._behaviour[places], threshold)
        dropped[places[~kept]] = True
        return torch.from_numpy(dropped).to(self._device)


def checked_loss(loss: Any, logprobs: Tensor) -> Tensor:
    """A user's loss, which has one entry a token. Raises DataError when it hasn't."""
    if not isinstance(loss, Tensor) or loss.shape != logprobs.shape:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise DataError(
            f"compute_loss returned {shape} for {logprobs.numel()} tokens",
            fix="return a tensor with the loss of each token, shaped as outputs.logprobs",
        )
    return loss
