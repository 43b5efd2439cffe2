"""The `training` block: trainings on fixed rows, told apart by their name.

A job has it instead of `algorithm`: nothing is generated. What all of them have is here once; a field of one training
alone is refused in the others.
"""

from typing import Annotated, Literal

from pydantic import Field

from areal.spec.block import SpecBlock, knob, resting
from areal.spec.text import PathText, Word

# ---- The `teacher` blocks: the frozen model that another one learns from, on fixed rows or on its own samples


Placement = Literal["same", "offloaded"]
"""Where a frozen model's weights are: on the policy's ranks, or on the host and there while it is asked."""


class Teacher(SpecBlock):
    """The model that a student learns from. It has the student's tokenizer."""

    path: PathText = knob(
        what="A Hugging Face model directory, hf://owner/name@revision, or pvc://claim/path on a cluster."
    )


class PolicyTeacher(Teacher):
    """The model that a policy learns from on its own samples: on-policy distillation (arXiv 2306.13649)."""

    coefficient: float = knob(
        1.0, what="Weight of −(log π_prox − log teacher), which is added to each token's advantage.", gt=0
    )
    endpoint: PathText | None = knob(
        None,
        what="Where it is served, such as http://teacher.models:30000: its log-probabilities come from there by "
        "SGLang's native API (`/generate`), and the trainer loads only the tokenizer and config.json of `path`.",
        pattern="^https?://[^/?#]+",
    )
    placement: Placement = knob(
        "same", what="Its weights stay beside the policy's, or are in host memory between uses (offloaded)."
    )


# ---- The `training` block: trainings on fixed rows, told apart by their name


Training = Literal["RL", "SFT", "DPO", "RewardModel", "Distillation"]


USUAL_RATES = {"SFT": 2e-5, "DPO": 5e-7, "RewardModel": 1e-5, "Distillation": 2e-5}
"""The learning rate of each training unless one is given."""


class FixedRowsBlock(SpecBlock):
    """What every training on fixed rows has: batches, length, how often rows are used."""

    union_key = "name"

    batch_size: int = knob(what="Rows a step.", unit="rows", ge=1, le=1 << 20)
    epochs: int | None = resting(
        None, what="How often each row is used; 1 unless this or maxSteps is given.", ge=1, le=10**6
    )
    max_steps: int | None = resting(None, what="Steps of the run, instead of epochs.", unit="steps", ge=1, le=10**9)
    max_tokens: int = knob(
        2048, what="Longest sequence; of a longer one the first tokens are kept.", unit="tokens", ge=2, le=1 << 24
    )
    chat_template: bool | None = knob(
        None, what="Apply the tokenizer's chat template to prompts that are plain text; unless given, if there is one."
    )

    def positions(self, rows: int) -> int:
        """How many rows the run uses in all, repetitions counted, of a dataset with so many."""
        return self.max_steps * self.batch_size if self.max_steps is not None else (self.epochs or 1) * rows

    def steps(self, rows: int) -> int:
        """How many steps the run has on a dataset of so many rows; the last one may be smaller."""
        return -(-self.positions(rows) // self.batch_size)


class Answers(FixedRowsBlock):
    """What every training on whole answers has: where they are."""

    answer_field: Word = knob("answer", what="The column with the answer, for rows whose messages don't end with one.")


class SftTraining(Answers):
    """Supervised fine-tuning: the answers' tokens become likelier."""

    name: Literal["SFT"] = knob(what="Which training: SFT, DPO, RewardModel or Distillation.")
    loss_aggregation: Literal["token", "sequence"] = knob(
        "token", what="Mean over all trained tokens of the step, or over its rows of each row's mean."
    )


class DpoTraining(FixedRowsBlock):
    """Direct preference optimisation on pairs of answers (arXiv 2305.18290)."""

    name: Literal["DPO"] = knob(what="The training.")
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


class RewardModelTraining(FixedRowsBlock):
    """A model that scores answers, from pairs of them (Bradley–Terry; arXiv 2203.02155)."""

    name: Literal["RewardModel"] = knob(what="The training.")
    margin_field: Word | None = knob(
        None,
        what="The column with how much better the chosen answer is, a number; it must score so much higher "
        "(arXiv 2307.09288). No margin unless given.",
    )
    centering_weight: float = knob(
        0.0, what="Weight of the squared sum of a pair's scores, which keeps them around 0 (arXiv 2312.09244).", ge=0
    )


class DistillationTraining(Answers):
    """Learning a teacher's distributions over the tokens of answers that are there (arXiv 2306.13649)."""

    name: Literal["Distillation"] = knob(what="The training.")
    teacher: Teacher = knob(what="The model that is learned from; it stays as it is.")
    divergence: Literal["forwardKL", "reverseKL", "jsd"] = knob(
        "forwardKL",
        what="KL(teacher‖student), KL(student‖teacher), or the Jensen–Shannon divergence: of both from their mixture.",
    )
    teacher_share: float = knob(0.5, what="The teacher's weight in the mixture; with divergence jsd only.", gt=0, lt=1)
    temperature: float = knob(1.0, what="Divides the logits of both models.", gt=0, le=100)


Supervised = Annotated[
    SftTraining | DpoTraining | RewardModelTraining | DistillationTraining, Field(discriminator="name")
]
"""The union of trainings on fixed rows."""
