"""The `algorithm` block: what is optimised and how.

A name is a set of defaults, nothing else: any field may be given beside it. What a name stands for is in
`resolved_algorithm`; here such a field is empty unless given. What people set stands in the block itself, what they set
to try a paper's variant in `advanced`.
"""

from typing import Any, Literal

from pydantic import model_validator

from areal.spec.block import Mutability, SpecBlock, knob
from areal.spec.supervised import Placement, PolicyTeacher

Level = Literal["group", "batch", "none"]
Name = Literal[
    "PPO",
    "GRPO",
    "DrGRPO",
    "DAPO",
    "RLOO",
    "REINFORCE++",
    "REINFORCE++Baseline",
    "GSPO",
    "SAPO",
    "LitePPO",
    "M2PO",
    "CISPO",
    "OnPolicyDistillation",
    "DPPO",
    "MaxRL",
]


class RejectionBlock(SpecBlock):
    """Tokens or sequences whose policy moved too far since they were sampled are left out of the loss."""

    metric: Literal["ratio", "k1", "k2", "k3", "binaryKl"] = knob(
        "ratio",
        what="What is measured, with d = log π_prox − log π_behav: e^d, d, d²/2, e^d − 1 − d, or the KL of two coins.",
    )
    level: Literal["token", "sequence"] = knob("token", what="Each token is judged by itself, or its whole sequence.")
    aggregate: Literal["mean", "sum", "max", "min"] = knob(
        "mean",
        what="How a sequence's tokens become one number; of a ratio, its logarithm. max goes with upper, min with "
        "lower.",
    )
    upper: float | None = knob(None, what="Largest value that is still trained; 5 for a ratio unless lower is given.")
    lower: float | None = knob(None, what="Smallest value that is still trained.")

    @property
    def highest(self) -> float | None:
        """The upper bound in force."""
        return 5.0 if self.upper is None and self.lower is None and self.metric == "ratio" else self.upper


class TruncateBlock(SpecBlock):
    """The behaviour weight is cut at a bound (truncated importance sampling)."""

    upper: float = knob(2.0, what="Largest weight.", gt=0)
    lower: float | None = knob(None, what="Smallest weight.", ge=0)


class OverlongBlock(SpecBlock):
    """A penalty that grows linearly as an answer nears the longest length (arXiv 2503.14476, eq. 13)."""

    max_tokens: int | None = knob(
        None, what="The longest answer; sampling.maxNewTokens unless given.", unit="tokens", ge=1, le=1 << 24
    )
    window: int = knob(4096, what="The penalty begins so far below it.", unit="tokens", ge=1, le=1 << 24)
    factor: float = knob(1.0, what="The penalty at the longest length and beyond; 0 is none.", ge=0)


class Kl(SpecBlock):
    """The divergence from the reference, which is the start model."""

    coefficient: float = knob(what="Its weight; 0 is none, and no reference is loaded.", ge=0)
    where: Literal["loss", "reward"] = knob(
        "loss",
        what="A term of the loss, or of each token's reward, as REINFORCE++ has it.",
        server_default=False,
        alias="as",
    )
    estimator: Literal["k1", "k2", "k3", "k3u"] | None = knob(
        None, what="x, x²/2, e^−x − 1 + x, or that times π_θ/π_behav; k2 in the loss and k1 in the reward unless given."
    )
    placement: Placement = knob(
        "same", what="The reference's weights stay beside the policy's, or are in host memory between uses (offloaded)."
    )

    @property
    def kind(self) -> str:
        """The estimator in force."""
        return self.estimator or ("k2" if self.where == "loss" else "k1")


class CriticBlock(SpecBlock):
    """A value model of its own: the start model with a head of one number, and its own optimizer."""

    learning_rate: float = knob(1e-5, what="Peak learning rate of the critic; its schedule is the policy's.", gt=0)
    weight_decay: float = knob(0.0, what="AdamW's weight decay of the critic.", ge=0)
    value_clip: float | None = knob(
        0.5, what="A value counts as moved by at most this from what it was before the step; null is no limit.", gt=0
    )
    loss: Literal["mse", "huber"] = knob("mse", what="Squared error, or linear beyond an error of 10.")
    warmup_steps: int = knob(
        0,
        what="In the first so many steps the critic alone learns; the policy's warm-up follows.",
        unit="steps",
        ge=0,
        le=10**9,
    )
    bootstrap: bool = knob(
        True, what="An answer that its length cut goes on at the value of its last state; false: it ends there."
    )


class ExpertFields(SpecBlock):
    """What a name decides well for nearly everybody: how advantages, ratios and weights are made."""

    reward_bias: float = knob(0.0, what="Added to each reward before it is scaled.")
    reward_clip: float | None = knob(None, what="Scaled rewards are cut to ± this.", gt=0)
    advantage_mean: Level | None = knob(None, what="Whose mean reward is subtracted; by name.")
    advantage_std: Literal["group", "batch", "none", "mean"] | None = knob(
        None,
        what="Whose deviation, around the mean that is subtracted, the advantage is divided by; or the group's mean "
        "reward itself; by name.",
    )
    advantage_unbiased: bool = knob(False, what="The deviation has Bessel's correction.")
    advantage_epsilon: float = knob(1e-6, what="Added to the deviation.", gt=0)
    leave_one_out: bool | None = knob(None, what="A sample's own reward is left out of its group's mean; by name.")
    advantage_normalize: Level | None = knob(
        None, what="Advantages are whitened over the tokens of the batch or of each group; by name."
    )
    advantage_clip: float | None = knob(
        None, what="Advantages are cut to ± this, before a teacher's part; 20 with a critic unless given.", gt=0
    )
    gamma: float = knob(1.0, what="Discount of a reward for each token, or turn, before it.", gt=0, le=1)
    lam: float = knob(
        1.0, what="GAE's λ: 1 is the whole return, lower trusts the critic more.", ge=0, le=1, alias="lambda"
    )
    gae_level: Literal["token", "turn"] = knob(
        "token", what="GAE's step is a token, or a turn: one answer, judged by the value at its first token."
    )

    importance_level: Literal["token", "sequence"] | None = knob(
        None,
        what="u = π_θ/π_prox of each token, or its geometric mean over the sequence, by which each token's own "
        "advantage is weighed; by name.",
    )
    surrogate: Literal["ppo", "none", "sapo", "cispo", "dppo"] | None = knob(
        None,
        what="min(uA, clip(u)A); uA; SAPO's gate; CISPO's clipped weight times log π; or DPPO's mask, whose δ are "
        "clipLow and clipHigh; by name.",
    )
    divergence: Literal["tv", "binaryKl"] = knob(
        "tv", what="How DPPO measures that a token's probability moved: |p − q|, or the KL of two coins."
    )
    quadratic: float = knob(0.0, what="DPPO's τ: τ·(log π_θ − log π_behav)² is added to each token's loss.", ge=0)
    dual_clip: float | None = knob(None, what="The loss of a negative advantage is at most this times |A|.", gt=1)
    tau_positive: float = knob(1.0, what="SAPO's temperature where the advantage is positive.", gt=0)
    tau_negative: float = knob(1.05, what="SAPO's temperature where it is negative.", gt=0)
    m2_threshold: float | None = knob(
        None, what="Tokens with the largest squared log-ratio go until the mean of the rest is below; by name.", gt=0
    )

    decoupled: bool = knob(True, what="Correct for stale tokens: clip around π_prox, weight by π_prox/π_behav.")
    proximal: Literal["auto", "trainingPass", "recompute", "loglinear", "behaviour"] = knob(
        "auto",
        what="Where π_prox comes from: the loss's own pass, a pass before the first update, an estimate by age, or "
        "π_behav itself. auto is trainingPass where that is exact, else recompute; behaviour with surrogate dppo.",
    )
    weight: Literal["token", "sequenceMean", "sequenceProduct"] = knob(
        "token", what="π_prox/π_behav of the token, its geometric mean over the sequence, or its product."
    )
    truncate: TruncateBlock | None = knob(None, what="Cut that weight at a bound.")
    rejection: RejectionBlock | None = knob(RejectionBlock, what="Leave out tokens too far off; null trains all.")
    rejections: list[RejectionBlock] = knob(list, what="Further rejections; all must pass.", max_length=8)


class PolicyGradient(SpecBlock):
    """Policy optimisation from rewards: a name's defaults, and any field beside it."""

    union_key = "name"

    name: Name = knob(what="The algorithm: a set of defaults (docs/algorithms.md).")
    group_size: int = knob(
        8,
        what="Samples a group: answers to one prompt that are compared with each other.",
        unit="samples",
        ge=1,
        le=1 << 12,
    )
    batch_size: int = knob(what="Groups a step.", unit="groups", ge=1, le=1 << 16)
    max_steps: int = knob(what="Steps of the run.", unit="steps", change=Mutability.LIVE, ge=1, le=10**9)
    max_staleness: int = knob(
        2,
        what="No trained token is older than this many versions; 0 is the synchronous loop.",
        unit="versions",
        change=Mutability.LIVE,
        ge=0,
        le=1000,
    )
    mini_batches: int = knob(
        1, what="PPO updates a step; with one, u is 1 and the clip idle.", unit="updates", ge=1, le=1 << 16
    )

    reward_scale: float | None = knob(None, what="Each reward is multiplied by this; by name.")
    overlong: OverlongBlock | None = knob(None, what="Penalty for answers near the longest length; by name.")
    truncated: Literal["train", "neutral", "mask"] = knob(
        "train", what="An answer cut by its length: as any other, with outcome 0, or not trained."
    )
    zero_variance: Literal["keep", "mask", "filter"] | None = knob(
        None,
        what="A group whose rewards are all the same: trained like any other (keep), masked from the loss, or "
        "replaced by another group (filter). By name; else mask where the group's mean is subtracted and no teacher "
        "teaches, and keep.",
    )
    clip_low: float | None = knob(None, what="u is clipped below 1 − this; by name.", gt=0, le=1)
    clip_high: float | None = knob(None, what="u is clipped above 1 + this; by name, else clipLow.", gt=0)
    loss_aggregation: Literal["token", "sequence", "constant"] | None = knob(
        None,
        what="Mean over all trained tokens of the step, mean of each sequence's mean, or the sum over sequences times "
        "sampling.maxNewTokens; over all ranks; by name.",
    )
    entropy_coefficient: float = knob(0.0, what="Weight of the entropy, which the loss rewards.", ge=0)
    kl: Kl | None = knob(None, what="Divergence from the reference; by name.")
    critic: CriticBlock | None = knob(None, what="A model of values, from which advantages are measured; by name.")
    teacher: PolicyTeacher | None = knob(
        None, what="A frozen model that judges each sampled token: on-policy distillation, alone or beside rewards."
    )
    advanced: ExpertFields = knob(ExpertFields, what="What a name decides, for whoever tries a variant of it.")

    @model_validator(mode="before")
    @classmethod
    def _kl_follows_name(cls, values: Any) -> Any:
        """A divergence is in the reward where the name has it there."""
        kl = values.get("kl") if isinstance(values, dict) and values.get("name") == "REINFORCE++" else None
        if not isinstance(kl, dict) or kl.get("as") is not None:
            return values
        return {**values, "kl": {**kl, "as": "reward"}}

    @property
    def samples_a_step(self) -> int:
        return self.batch_size * self.group_size


Algorithm = PolicyGradient  # The union of algorithms


class Research(SpecBlock):
    """What is refused unless a study is made of it."""

    allow_stale: bool = knob(
        False,
        what="Train tokens older than one version without the decoupled correction: a warning, no error, as in the "
        "ablation of `areal study staleness`.",
    )
