"""The `teacher` blocks: the frozen model that another one learns from, on fixed rows or on its own samples."""

from typing import Literal

from areal.spec.block import SpecBlock, knob
from areal.spec.text import PathText

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
