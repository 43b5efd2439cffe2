"""The `algorithm` block: what is optimised and how.

A union on `name`: each algorithm has its own fields.
"""

from __future__ import annotations

from typing import Literal

from areal.spec.block import Block, Change, knob


class Rejection(Block):
    """Tokens whose policy moved too far since they were sampled are left out of the loss."""

    metric: Literal["ratio"] = knob("ratio", what="What is measured: π_prox/π_behav of the token.")
    upper: float = knob(5.0, what="Largest value that is still trained.", gt=1)


class Grpo(Block):
    """Group-relative policy optimisation with the decoupled PPO loss (arXiv 2402.03300, 2505.24298)."""

    union_key = "name"

    name: Literal["GRPO"] = knob(what="The algorithm.")
    group_size: int = knob(
        8,
        what="Samples a group: answers to one prompt that are compared with each other.",
        unit="samples",
        ge=1,
        le=1 << 12,
    )
    batch_size: int = knob(what="Groups a step.", unit="groups", ge=1, le=1 << 16)
    max_steps: int = knob(
        what="Steps of the run.", unit="steps", change=Change.RESUME, cluster=Change.LIVE, ge=1, le=10**9
    )
    max_staleness: int = knob(
        2,
        what="η: no trained token is older than this many versions; 0 is the synchronous loop.",
        unit="versions",
        change=Change.RESUME,
        cluster=Change.LIVE,
        ge=0,
        le=1000,
    )

    learning_rate: float = knob(1e-6, what="Peak learning rate.", gt=0)
    warmup_steps: int = knob(5, what="Steps of linear warm-up from 0.", unit="steps", ge=0, le=10**9)
    lr_schedule: Literal["linear", "constant", "cosine"] = knob(
        "linear", what="How the learning rate falls after warm-up."
    )
    min_lr_ratio: float = knob(0.1, what="The schedule's end, as a fraction of the peak.", ge=0, le=1)
    betas: tuple[float, float] = knob((0.9, 0.99), what="AdamW's β₁ and β₂.", strict=False)
    weight_decay: float = knob(0.0, what="AdamW's weight decay.", ge=0)
    eps: float = knob(1e-8, what="AdamW's ε.", gt=0)
    grad_clip: float = knob(1.0, what="Largest norm of the gradient.", gt=0)

    clip_low: float = knob(0.2, what="u = π_θ/π_prox is clipped below 1 − this.", gt=0, lt=1)
    clip_high: float | None = knob(None, what="u is clipped above 1 + this; clipLow unless given.", gt=0)
    mini_batches: int = knob(
        1, what="PPO updates a step; with one, u is 1 and the clip idle.", unit="updates", ge=1, le=1 << 16
    )
    advantage_mean: Literal["group", "batch", "none"] = knob("group", what="Whose mean reward is subtracted.")
    advantage_std: Literal["group", "batch", "none"] = knob(
        "group", what="Whose deviation the advantage is divided by."
    )
    leave_one_out: bool = knob(False, what="A sample's own reward is left out of its group's mean.")
    zero_variance: Literal["keep", "mask", "filter"] | None = knob(
        None,
        what="A group whose rewards are all the same: trained like any other (keep), masked from the loss, or "
        "replaced by another group (filter). mask unless given where the group's mean is subtracted, else keep.",
    )
    decoupled: bool = knob(True, what="Correct for stale tokens: clip around π_prox, weight by π_prox/π_behav.")
    rejection: Rejection | None = knob(Rejection, what="Leave out tokens too far off; null trains all.")
    loss_aggregation: Literal["token"] = knob("token", what="Mean over all trained tokens of the step, over all ranks.")
    kl_coefficient: float = knob(0.0, what="Weight of the KL divergence from the start model.", ge=0)

    @property
    def samples_a_step(self) -> int:
        return self.batch_size * self.group_size

    @property
    def masks_zero_variance(self) -> bool:
        """Whether groups whose rewards are all the same are left out of the loss."""
        if self.zero_variance is None:
            return self.advantage_mean == "group" or self.leave_one_out
        return self.zero_variance != "keep"

    @property
    def upper_clip(self) -> float:
        return self.clip_low if self.clip_high is None else self.clip_high


Algorithm = Grpo
"""The union of algorithms."""
