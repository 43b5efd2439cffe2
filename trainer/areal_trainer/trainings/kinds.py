"""Trainings on fixed rows as a run sees them: a batch's objective, and the figures of held-out rows."""

import io
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import xxhash
from areal.data import Snapshot
from areal.data.order import RowOrder
from areal.dataflow.builtin import graph_of
from areal.dataflow.running import StageFunction, StageInputs, StepRun
from areal.errors import ArealError, BugError
from areal.files import write_atomically
from areal.image_shape import ImageShape
from areal.spec.job import JobSpec
from areal.workflow.examples import Example, margin_of, sequences_of
from areal.workflow.tokenizer import Tokenizer
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.data.batch import TokenBatch, image_columns, unsampled
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.engine.engine import PolicyEngine, ValueEngine
from areal_trainer.engine.group import first_only
from areal_trainer.trainings import objective
from areal_trainer.trainings.objective import PairLoss, RowsObjective, per_sequence

# ---- The model of a supervised training: its outputs for a batch, and one update by the weights of these
# The output at a token's place is its log-probability, of a value model the value of what stands before it, or of a
# student how far its distribution is from the teacher's.


@dataclass(frozen=True)
class Update:
    """What an update did."""

    loss: float  # Σ weights·output over all ranks, before the update
    grad_norm: float  # before clipping; not finite when nothing was changed

    @property
    def applied(self) -> bool:
        """Whether the weights changed."""
        return math.isfinite(self.grad_norm)


class Learner:
    """Every method is a collective: all ranks call it with the same batch."""

    def __init__(
        self, engine: PolicyEngine | ValueEngine, forward: Callable[[MicroBatch], Tensor], micro_batch_tokens: int,
        pack_length: int | None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self._forward = forward  # the outputs at a micro-batch's predicted tokens, with gradient
        self._micro_batch_tokens = micro_batch_tokens
        self._pack_length = pack_length

    def outputs(self, batch: TokenBatch, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """At every trained token under the present weights, of the `chosen` sequences, [tokens]; 0 elsewhere."""
        predicted = batch.trainable() if chosen is None else batch.trainable() & chosen[batch.sequence_of]
        found = self.engine.infer(self._micros(batch, predicted), batch.tokens, self._forward)
        values: NDArray[np.float32] = found.numpy()
        return values

    def update(self, batch: TokenBatch, weights: NDArray[np.float64], learning_rate: float) -> Update:
        """One step down the gradient of Σ weights·output."""
        device = self.engine.ranks.device
        column = torch.from_numpy(weights.astype(np.float32)).to(device)

        def loss(micro: MicroBatch) -> Tensor:
            return (self._forward(micro) * column[micro.token_index.to(device)]).sum()

        total = self.engine.backward(self._micros(batch, batch.trainable() & (weights != 0)), loss)
        norm = self.engine.optimizer.step(learning_rate, total)
        self.engine.ranks.add(total)
        return Update(float(total), norm)

    def _micros(self, batch: TokenBatch, predicted: NDArray[np.bool_]) -> list[MicroBatch]:
        chosen = np.unique(batch.sequence_of[predicted])
        return self.engine.micros(batch, chosen, predicted, self._micro_batch_tokens, self._pack_length)


# ---- The dataset of a supervised run as training batches: rows are encoded when they are needed, on every rank alike


_EVALUATED_TOGETHER = 256  # rows of one forward pass' batch where nothing is learned


class PreparedRows:
    """One prepared split."""

    def __init__(self, directory: Path, tokenizer: Tokenizer, spec: JobSpec) -> None:
        block = spec.supervised
        if block is None:
            raise ValueError("RL has no fixed rows")
        self._snapshot = Snapshot(directory)
        self._tokenizer = tokenizer
        self._spec = spec
        self._longest = block.max_tokens
        self._scored = spec.reward_model
        self.truncated = 0  # sequences that were cut so far

    def __len__(self) -> int:
        return len(self._snapshot)

    def order(self, seed: int) -> RowOrder:
        """Which row each position has."""
        return self._snapshot.order(seed)

    @property
    def digest(self) -> str:
        """Names the rows."""
        return self._snapshot.digest

    def fingerprint(self, row: int) -> int:
        """xxh3 of a row as it is on disk."""
        return xxhash.xxh3_64_intdigest(self._snapshot.row_json(row))

    def margins(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Margin by which the chosen answer of each pair must score higher, [rows]."""
        field = None if self._scored is None else self._scored.margin_field
        return np.array([margin_of(self._snapshot.row(row), field) for row in rows], np.float64)

    def batch(self, rows: Sequence[int]) -> TokenBatch:
        """The sequences of some rows; a row's sequences share a group, which is its place among `rows`."""
        examples, groups = [], []
        for place, row in enumerate(rows):
            found = self._examples(row)
            examples += found
            groups += [place] * len(found)
        return token_batch(examples, groups, self._tokenizer.image_shape)

    def chunks(self, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], TokenBatch]]:
        """All of `rows` in batches of a bounded size."""
        for start in range(0, len(rows), _EVALUATED_TOGETHER):
            part = rows[start : start + _EVALUATED_TOGETHER]
            yield part, self.batch(part)

    def _examples(self, row: int) -> list[Example]:
        try:
            found = sequences_of(self._snapshot.row(row), self._tokenizer, self._spec)
        except ArealError as error:
            raise type(error)(f"{self._snapshot.place(row)}: {error.message}", fix=error.fix) from error
        self.truncated += sum(len(example.ids) > self._longest for example in found)
        kept = [example.cut(self._longest, self._tokenizer.image_shape) for example in found]
        return kept if self._scored is None else [example.scored() for example in kept]


def token_batch(examples: Sequence[Example], groups: Sequence[int], shape: ImageShape | None = None) -> TokenBatch:
    """Columns of some sequences; `shape` is that of images, of a model that reads them."""
    ids = np.concatenate([example.ids for example in examples])
    mask = np.concatenate([example.mask for example in examples])
    found = unsampled(ids, [len(example.ids) for example in examples], groups, mask)
    images = [example.images for example in examples]
    return replace(found, **image_columns([one.ids for one in examples], images, shape)) if any(images) else found


# ---- Trainings on fixed rows as a run sees them: a batch's objective, and the figures of held-out rows


_log = logging.getLogger(__name__)


class RowsTraining:
    """One kind of supervised training. Every method is a collective."""

    metric: Literal["loss", "pair_accuracy"] = "loss"  # of held-out rows, by which versions are compared

    def __init__(self, learner: Learner, spec: JobSpec) -> None:
        self._learner = learner
        self._spec = spec

    def prepare(self, rows: PreparedRows, used: Sequence[int]) -> None:
        """Before the checkpoint is loaded: what the start model must say of the rows that will be used, if anything."""

    def stages(self, rows: PreparedRows, used: Sequence[int]) -> dict[str, StageFunction]:
        """Functions of the stages before the objective."""
        return {}

    def objective(self, inputs: StageInputs) -> RowsObjective:
        """The loss of a batch around the present weights."""
        raise NotImplementedError

    def measure(self, rows: PreparedRows, used: Sequence[int]) -> dict[str, float]:
        """Figures of held-out rows, `loss` and the training's metric among them: of pairs, means over all of them."""
        sums: dict[str, float] = {}
        for part, batch in rows.chunks(used):
            one = RowsStep(self._spec, self, self._learner, rows, part, batch).objective()
            pairs = one.figures["pairs"]
            for name, value in {"loss": one.loss or 0.0, **one.figures}.items():
                sums[name] = sums.get(name, 0.0) + (value if name == "pairs" else value * pairs)
        pairs = max(sums.pop("pairs", 0.0), 1.0)
        return {name: value / pairs for name, value in sums.items()}


class RowsStep:
    """A batch of fixed rows on its way through the graph of its training."""

    def __init__(
        self,
        spec: JobSpec,
        training: RowsTraining,
        learner: Learner,
        rows: PreparedRows,
        used: Sequence[int],
        batch: TokenBatch,
    ) -> None:
        graph = graph_of(spec)
        self._update_stage = next(stage.name for stage in graph.stages if stage.kind == "update")
        self._training, self._learner = training, learner
        self._rate = 0.0
        self.aim: RowsObjective | None = None
        self.update: Update | None = None
        functions = {**training.stages(rows, used), "objective": self._objective, self._update_stage: self._updated}
        columns = batch.arrays()
        if spec.reward_model is not None:
            columns["margins"] = np.repeat(rows.margins(used), 2)
        self._run = StepRun(graph, functions, columns, batch.offsets, batch)

    def objective(self) -> RowsObjective:
        """The loss around the present weights."""
        self._run.through("objective")
        assert self.aim is not None
        return self.aim

    def learn(self, rate: float) -> tuple[RowsObjective, Update]:
        """The whole step."""
        self._rate = rate
        self._run.rest()
        assert self.aim is not None
        assert self.update is not None
        return self.aim, self.update

    def _objective(self, inputs: StageInputs) -> dict[str, NDArray[np.float64]]:
        self.aim = self._training.objective(inputs)
        return {"loss_weights": self.aim.weights}

    def _updated(self, inputs: StageInputs) -> dict[str, NDArray[np.float64]]:
        self.update = self._learner.update(inputs.tokens, inputs["loss_weights"], self._rate)
        return {}


def kind_of(spec: JobSpec, learner: Learner, cache: Path, model_digest: str) -> RowsTraining:
    """The training that a job names; `cache` is a directory for what is computed once."""
    if spec.sft is not None:
        return SftTraining(learner, spec)
    if spec.dpo is not None:
        return DpoTraining(learner, spec, cache, model_digest)
    if spec.reward_model is not None:
        return RewardModelTraining(learner, spec)
    if spec.distillation is not None:
        return DistillationTraining(learner, spec)
    raise BugError(f"training {spec.training} has no loop here")


class SftTraining(RowsTraining):
    """Supervised fine-tuning."""

    def objective(self, inputs: StageInputs) -> RowsObjective:
        assert self._spec.sft is not None
        return objective.sft(inputs.tokens, self._spec.sft.loss_aggregation)

    def measure(self, rows: PreparedRows, used: Sequence[int]) -> dict[str, float]:
        """`loss`: mean over tokens. `answer_probability`: mean probability of a whole answer, sampled as it is."""
        total, tokens, likely = 0.0, 0, 0.0
        for _, batch in rows.chunks(used):
            mask = batch.trainable()
            sums = per_sequence(batch, np.where(mask, self._learner.outputs(batch), 0.0).astype(np.float64))
            total -= float(sums.sum())
            tokens += int(mask.sum())
            likely += float(np.exp(sums[batch.has_signal()]).sum())
        loss = total / max(tokens, 1)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "answer_probability": likely / len(used)}


class DpoTraining(RowsTraining):
    """Preference learning against the start model, whose log-probabilities are computed once and kept."""

    def __init__(self, learner: Learner, spec: JobSpec, cache: Path, model_digest: str) -> None:
        super().__init__(learner, spec)
        assert spec.dpo is not None
        block = spec.dpo
        self._options = PairLoss(block.beta, block.loss, block.label_smoothing, block.nll_weight)
        self._cache = cache
        self._facts = {"model": model_digest, "maxTokens": block.max_tokens, "chatTemplate": block.chat_template}
        self._reference: dict[str, NDArray[np.float64]] = {}  # by dataset: [rows, 2], NaN where not computed

    def prepare(self, rows: PreparedRows, used: Sequence[int]) -> None:
        """Σ log-probabilities of both answers of each pair under the start model; read where they were kept."""
        ranks = self._learner.engine.ranks
        table = np.full((len(rows), 2), np.nan)
        file = self._cache / f"reference-{rows.digest[:16]}.npz"
        if (kept := self._read(file, table.shape)) is not None:
            table = kept
        missing = [row for row in used if np.isnan(table[row]).any()]
        ranks.barrier()  # nobody writes before all have read
        if missing:
            _log.info("the start model scores %d pairs", len(missing))
        for part, batch in rows.chunks(missing):
            with self._learner.engine.base_alone():
                outputs = self._learner.outputs(batch)
            masked = np.where(batch.trainable(), outputs, 0.0).astype(np.float64)
            table[np.asarray(part)] = per_sequence(batch, masked).reshape(-1, 2)
        if missing:
            first_only(ranks, lambda: self._write)(file, table)
        self._reference[rows.digest] = table

    def stages(self, rows: PreparedRows, used: Sequence[int]) -> dict[str, StageFunction]:
        sums = self._reference[rows.digest][np.asarray(used)].reshape(-1)
        return {
            "reference": lambda inputs: {"reference_sums": sums},
            "logprobs": lambda inputs: {"logprobs": self._learner.outputs(inputs.tokens)},
        }

    def objective(self, inputs: StageInputs) -> RowsObjective:
        return objective.dpo(inputs.tokens, inputs["logprobs"], inputs["reference_sums"], self._options)

    def _read(self, file: Path, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
        try:
            with np.load(file, allow_pickle=False) as kept:
                table: NDArray[np.float64] = kept["sums"]
                same = json.loads(str(kept["facts"])) == self._facts
        except (OSError, ValueError, KeyError):
            return None
        return table if same and table.shape == shape else None

    def _write(self, file: Path, table: NDArray[np.float64]) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, sums=table, facts=np.array(json.dumps(self._facts)))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, buffer.getvalue())


class RewardModelTraining(RowsTraining):
    """Bradley–Terry: the chosen answer of a pair scores higher than the rejected one."""

    metric = "pair_accuracy"

    def stages(self, rows: PreparedRows, used: Sequence[int]) -> dict[str, StageFunction]:
        return {"scores": lambda inputs: {"scores": self._learner.outputs(inputs.tokens)[inputs.offsets[1:] - 1]}}

    def objective(self, inputs: StageInputs) -> RowsObjective:
        assert self._spec.reward_model is not None
        outputs = np.zeros(inputs.tokens.tokens, np.float32)
        outputs[inputs.offsets[1:] - 1] = inputs["scores"]
        centering = self._spec.reward_model.centering_weight
        return objective.bradley_terry(inputs.tokens, outputs, inputs["margins"][::2], centering)


class DistillationTraining(RowsTraining):
    """A teacher's distributions, micro-batch by micro-batch: the learner's outputs are how far the student's are."""

    def objective(self, inputs: StageInputs) -> RowsObjective:
        return objective.distillation(inputs.tokens)

    def measure(self, rows: PreparedRows, used: Sequence[int]) -> dict[str, float]:
        """`loss`: mean over tokens."""
        total, tokens = 0.0, 0
        for _, batch in rows.chunks(used):
            mask = batch.trainable()
            total += float(np.where(mask, self._learner.outputs(batch), 0.0).sum(dtype=np.float64))
            tokens += int(mask.sum())
        return {"loss": total / max(tokens, 1)}
