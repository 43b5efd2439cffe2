"""Graphs of the built-in trainings, each from what a job needs."""

from dataclasses import dataclass, replace
from typing import Literal

from areal.dataflow.stages import Column, Graph, Place, Stage
from areal.spec.job import JobSpec
from areal.spec.resolved_algorithm import resolve
from areal.spec.supervised import PolicyTeacher

PROMPTS = Column("prompts", "row", "json")
TOKEN_IDS = Column("token_ids", "token", "int64")
LOSS_MASK = Column("loss_mask", "token", "bool")
BEHAVIOUR = Column("behaviour_logprobs", "token", "float32")
VERSIONS = Column("versions", "token", "int64")
TRUNCATED = Column("truncated", "sequence", "bool")
GROUPS = Column("group_ids", "sequence", "int64")
SAMPLES = Column("sample_indices", "sequence", "int64")
REWARDS = Column("rewards", "sequence", "float64")
PROXIMAL = Column("proximal", "token", "float32")
REFERENCE = Column("reference", "token", "float32")
TEACHER_LOGPROBS = Column("teacher_logprobs", "token", "float32")
VALUES = Column("values", "token", "float64")
BOOTSTRAP = Column("bootstrap", "sequence", "float64")
ADVANTAGES = Column("advantages", "token", "float64")
RETURNS = Column("returns", "token", "float64")
TRAINED = Column("trained", "sequence", "bool")
SUMS = Column("reference_sums", "sequence", "float64")
LOGPROBS = Column("logprobs", "token", "float32")
WEIGHTS = Column("loss_weights", "token", "float64")
MARGINS = Column("margins", "sequence", "float64")
SCORES = Column("scores", "sequence", "float32")
TEACHER = Column("teacher", "model", "weights")
POLICY = Column("policy", "model", "weights")
REWARD_MODEL = Column("reward_model", "model", "weights")

SAMPLED = (TOKEN_IDS, LOSS_MASK, BEHAVIOUR, VERSIONS, TRUNCATED, GROUPS, SAMPLES)


@dataclass(frozen=True)
class StepNeeds:
    """What decides which stages a step of RL has."""

    proximal: bool = False  # a pass of its own before the first update
    kl: Literal["loss", "reward"] | None = None
    of_behaviour: bool = False  # penalty and teacher are compared with the policy that made the tokens
    critic: bool = False
    teacher: bool = False  # of each sampled token: on-policy distillation
    reference_placement: Place = "same"
    teacher_placement: Place = "same"

    @property
    def policy_first(self) -> bool:
        """Whether the advantages are made of what the policy says of its tokens before the update."""
        return self.kl == "reward" or self.teacher


def needs_of(spec: JobSpec) -> StepNeeds:
    """The needs of a job of RL."""
    meant, teacher = resolve(spec), spec.algorithm.teacher
    return StepNeeds(
        proximal=meant.proximal == "recompute",
        kl=meant.kl.where if meant.kl is not None else None,
        of_behaviour=meant.proximal == "behaviour",
        critic=meant.critic is not None,
        teacher=teacher is not None,
        reference_placement=meant.kl.placement if meant.kl is not None else "same",
        teacher_placement=_place_of(teacher),
    )


def _place_of(teacher: PolicyTeacher | None) -> Place:
    if teacher is None:
        return "same"
    return teacher.placement if teacher.endpoint is None else "served"


def graph_of(spec: JobSpec) -> Graph:
    """The graph of a job."""
    if spec.is_rl:
        return policy_gradient(needs_of(spec))
    if spec.distillation is not None:
        return distillation()
    return reward_model() if spec.reward_model is not None else supervised(pairs=spec.has_pairs)


def policy_gradient(needs: StepNeeds) -> Graph:
    """RL from rewards. A pass that advantages need comes before them, another only for sequences that are trained."""
    proximal = Stage("proximal", "infer", (TOKEN_IDS, LOSS_MASK), (PROXIMAL,), "policy")
    reference = Stage(
        "reference", "infer", (TOKEN_IDS, LOSS_MASK), (REFERENCE,), "reference", placement=needs.reference_placement
    )
    before, after = [], []
    from_passes: tuple[Column, ...] = ()
    if needs.policy_first:
        before += [] if needs.of_behaviour else [proximal]
        from_passes = (BEHAVIOUR if needs.of_behaviour else PROXIMAL,)
    if needs.kl == "reward":
        before.append(reference)
        from_passes += (REFERENCE,)
    if needs.teacher:
        before.append(
            Stage(
                "teacher log-probs", "infer", (TOKEN_IDS, LOSS_MASK), (TEACHER_LOGPROBS,), "teacher",
                placement=needs.teacher_placement,
            )
        )  # fmt: skip
        from_passes += (TEACHER_LOGPROBS,)
    if needs.critic:
        before.append(Stage("values", "infer", (TOKEN_IDS, LOSS_MASK, TRUNCATED), (VALUES, BOOTSTRAP), "critic"))
        from_passes += (VALUES, BOOTSTRAP)
    if needs.proximal and proximal not in before:
        after.append(_of_trained(proximal))
    if needs.kl == "loss":
        after.append(_of_trained(reference))
    rewarded = (REWARDS, LOSS_MASK, TRUNCATED, GROUPS, SAMPLES)
    outcome = (ADVANTAGES, TRAINED, *((RETURNS,) if needs.critic else ()))
    updates = [Stage("update critic", "update", (TOKEN_IDS, LOSS_MASK, VALUES, RETURNS, TRAINED), (), "critic")]
    read: tuple[Column, ...] = (TOKEN_IDS, LOSS_MASK, BEHAVIOUR, VERSIONS, ADVANTAGES, TRAINED)
    read += ((PROXIMAL,) if needs.proximal else ()) + ((REFERENCE,) if needs.kl == "loss" else ())
    return Graph(
        (
            Stage("data", "data", (), (PROMPTS,), clock="sample"),
            Stage("generate", "generate", (PROMPTS,), SAMPLED, "policy", "sample", lagged=(POLICY,)),
            Stage("score", "score", (PROMPTS, TOKEN_IDS), (REWARDS,), clock="sample"),
            *before,
            Stage("advantages", "compute", (*rewarded, *from_passes), outcome),
            *after,
            *(updates if needs.critic else ()),
            Stage("update policy", "update", read, (POLICY,), "policy"),
            Stage("publish", "publish", (POLICY,), (), "policy"),
        )
    )


def supervised(*, pairs: bool) -> Graph:
    """SFT, or DPO on pairs of answers: the loss is a weight for each token's log-probability."""
    rows = (TOKEN_IDS, LOSS_MASK)
    if not pairs:
        objective = [Stage("objective", "compute", (LOSS_MASK,), (WEIGHTS,))]
    else:
        objective = [
            Stage("reference", "infer", rows, (SUMS,), "reference"),
            Stage("logprobs", "infer", rows, (LOGPROBS,), "policy"),
            Stage("objective", "compute", (LOSS_MASK, SUMS, LOGPROBS), (WEIGHTS,)),
        ]
    return Graph(
        (
            Stage("data", "data", (), rows),
            *objective,
            Stage("update policy", "update", (*rows, WEIGHTS), (POLICY,), "policy"),
            Stage("export", "publish", (POLICY,), (), "policy"),
        )
    )


def reward_model() -> Graph:
    """A reward model on pairs of answers: the loss is a weight for each sequence's score."""
    rows = (TOKEN_IDS, LOSS_MASK)
    return Graph(
        (
            Stage("data", "data", (), (*rows, MARGINS)),
            Stage("scores", "infer", rows, (SCORES,), "reward model"),
            Stage("objective", "compute", (LOSS_MASK, SCORES, MARGINS), (WEIGHTS,)),
            Stage("update reward model", "update", (*rows, WEIGHTS), (REWARD_MODEL,), "reward model"),
            Stage("export", "publish", (REWARD_MODEL,), (), "reward model"),
        )
    )


def distillation() -> Graph:
    """A student of a teacher. Distributions are never columns: the update makes both models' of one chunk at a time."""
    rows = (TOKEN_IDS, LOSS_MASK)
    return Graph(
        (
            Stage("data", "data", (), rows),
            Stage("teacher", "data", (), (TEACHER,), "teacher"),
            Stage("objective", "compute", (LOSS_MASK,), (WEIGHTS,)),
            Stage("update policy", "update", (*rows, WEIGHTS, TEACHER), (POLICY,), "policy"),
            Stage("export", "publish", (POLICY,), (), "policy"),
        )
    )


def _of_trained(stage: Stage) -> Stage:
    return replace(stage, reads=(*stage.reads, TRAINED))
