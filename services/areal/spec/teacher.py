"""The `teacher` blocks: the frozen model that another one learns from, on fixed rows or on its own samples."""

from __future__ import annotations

from areal.spec.block import Block, knob
from areal.spec.text import LONGEST_PATH


class Teacher(Block):
    """The model that a student learns from. It has the student's tokenizer."""

    path: str = knob(
        what="A Hugging Face model directory, or pvc://claim/path on a cluster.", min_length=1, max_length=LONGEST_PATH
    )


class PolicyTeacher(Teacher):
    """The model that a policy learns from on its own samples: on-policy distillation (arXiv 2306.13649)."""

    coefficient: float = knob(
        1.0, what="Weight of −(log π_prox − log teacher), which is added to each token's advantage.", gt=0
    )
