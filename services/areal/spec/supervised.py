"""The `sft`, `dpo`, `rewardModel` and `distillation` blocks: trainings on fixed rows.

A training that generates nothing has one block with all its settings. `spec.training` says which one a job has.
"""

from __future__ import annotations

from typing import Literal

from areal.spec.block import Block, Change, knob
from areal.spec.teacher import Teacher
from areal.spec.text import LONGEST_WORD

Training = Literal["RL", "SFT", "DPO", "RewardModel", "Distillation"]

BLOCKS: dict[Training, str] = {
    "RL": "algorithm", "SFT": "sft", "DPO": "dpo", "RewardModel": "rewardModel", "Distillation": "distillation",
}  # fmt: skip
"""The block of each training; a job has its own alone."""


class Supervised(Block):
    """What every training on fixed rows has: batches, length, optimizer."""

    batch_size: int = knob(what="Rows a step.", unit="rows", ge=1, le=1 << 20)
    epochs: int | None = knob(
        None, what="How often each row is used; 1 unless this or maxSteps is given.", change=Change.RESUME, ge=1,
        le=10**6,
    )  # fmt: skip
    max_steps: int | None = knob(
        None, what="Steps of the run, instead of epochs.", unit="steps", change=Change.RESUME, ge=1, le=10**9
    )
    max_tokens: int = knob(
        2048, what="Longest sequence; of a longer one the first tokens are kept.", unit="tokens", ge=2, le=1 << 24
    )
    chat_template: bool | None = knob(
        None, what="Apply the tokenizer's chat template to prompts that are plain text; unless given, if there is one."
    )
    learning_rate: float = knob(2e-5, what="Peak learning rate.", gt=0, le=0.1)
    warmup_steps: int = knob(5, what="Steps of linear warm-up from 0.", unit="steps", ge=0, le=10**9)
    lr_schedule: Literal["linear", "constant", "cosine"] = knob(
        "linear", what="How the learning rate falls after warm-up."
    )
    min_lr_ratio: float = knob(0.1, what="The schedule's end, as a fraction of the peak.", ge=0, le=1)
    betas: tuple[float, float] = knob((0.9, 0.99), what="AdamW's β₁ and β₂.", strict=False)
    weight_decay: float = knob(0.0, what="AdamW's weight decay.", ge=0)
    eps: float = knob(1e-8, what="AdamW's ε.", gt=0)
    grad_clip: float = knob(1.0, what="Largest norm of the gradient.", gt=0)

    def positions(self, rows: int) -> int:
        """How many rows the run uses in all, repetitions counted, of a dataset with so many."""
        return self.max_steps * self.batch_size if self.max_steps is not None else (self.epochs or 1) * rows

    def steps(self, rows: int) -> int:
        """How many steps the run has on a dataset of so many rows; the last one may be smaller."""
        return -(-self.positions(rows) // self.batch_size)


class Answers(Supervised):
    """What every training on whole answers has: where they are."""

    answer_field: str = knob(
        "answer", what="The column with the answer, for rows whose messages don't end with one.", min_length=1,
        max_length=LONGEST_WORD,
    )  # fmt: skip


class Sft(Answers):
    """Supervised fine-tuning: the answers' tokens become likelier."""

    loss_aggregation: Literal["token", "sequence"] = knob(
        "token", what="Mean over all trained tokens of the step, or over its rows of each row's mean."
    )


class Dpo(Supervised):
    """Direct preference optimisation on pairs of answers (arXiv 2305.18290)."""

    learning_rate: float = knob(5e-7, what="Peak learning rate.", gt=0, le=0.1)
    beta: float = knob(0.1, what="How much a log-probability ratio counts: larger stays closer to the start.", gt=0)
    loss: Literal["sigmoid", "ipo"] = knob(
        "sigmoid", what="DPO's own loss, or IPO's square of the distance to 1/(2β) (arXiv 2310.12036)."
    )
    label_smoothing: float = knob(
        0.0, what="Probability that a pair's label is wrong (cDPO); with loss sigmoid only.", ge=0, le=0.49
    )
    nll_weight: float = knob(
        0.0, what="Weight of the chosen answer's own negative log-likelihood, which keeps it likely.", ge=0
    )


class RewardModel(Supervised):
    """A model that scores answers, from pairs of them (Bradley–Terry; arXiv 2203.02155)."""

    learning_rate: float = knob(1e-5, what="Peak learning rate.", gt=0, le=0.1)
    margin_field: str | None = knob(
        None,
        what="The column with how much better the chosen answer is, a number; it must score so much higher "
        "(arXiv 2307.09288). No margin unless given.",
        min_length=1, max_length=LONGEST_WORD,
    )  # fmt: skip
    centering_weight: float = knob(
        0.0, what="Weight of the squared sum of a pair's scores, which keeps them around 0 (arXiv 2312.09244).", ge=0
    )


class Distillation(Answers):
    """Learning a teacher's distributions over the tokens of answers that are there (arXiv 2306.13649)."""

    teacher: Teacher = knob(what="The model that is learned from; it stays as it is.")
    loss: Literal["forwardKL", "reverseKL", "jsd"] = knob(
        "forwardKL",
        what="KL(teacher‖student), KL(student‖teacher), or the Jensen–Shannon divergence: of both from their mixture.",
    )
    teacher_share: float = knob(0.5, what="The teacher's weight in the mixture; with loss jsd only.", gt=0, lt=1)
    temperature: float = knob(1.0, what="Divides the logits of both models.", gt=0, le=100)
