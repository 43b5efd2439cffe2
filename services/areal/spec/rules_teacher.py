"""Rules of on-policy distillation: a teacher beside the policy, with or without rewards."""

from areal.spec.job import RLJob
from areal.spec.resolved_algorithm import needs_scores, resolve
from areal.spec.rules import Facts, rule

TAUGHT_ALONE = (
    "(has(self.spec.algorithm.teacher) && (has(self.spec.algorithm.rewardScale) ? "
    "double(self.spec.algorithm.rewardScale) == 0.0 : self.spec.algorithm.name == 'OnPolicyDistillation'))"
)
"""CEL: a teacher says everything, rewards nothing."""


@rule(
    "OnPolicyDistillation has a teacher.",
    cel="self.spec.algorithm.name != 'OnPolicyDistillation' || has(self.spec.algorithm.teacher)",
)
def teacher_missing(job: RLJob, facts: Facts) -> str | None:
    algorithm = job.spec.algorithm
    if algorithm.name != "OnPolicyDistillation" or algorithm.teacher is not None:
        return None
    return "OnPolicyDistillation learns from a teacher, and algorithm.teacher names none"


@rule("A teacher is compared with the policy as it is before the update.")
def teacher_proximal(job: RLJob, facts: Facts) -> str | None:
    if job.spec.algorithm.teacher is None or (found := resolve(job.spec).proximal) in ("recompute", "behaviour"):
        return None
    return f"log π_prox − log teacher is needed before the advantages, and proximal {found} has π_prox only in the loss"


@rule("Where only a teacher teaches, groups of equal rewards are trained like any other.")
def teacher_groups(job: RLJob, facts: Facts) -> str | None:
    found = resolve(job.spec).zero_variance
    if needs_scores(job.spec) or found == "keep":
        return None
    return f"rewards count for nothing (rewardScale 0), and zeroVariance {found} would choose groups by them"


@rule(
    "Held-out rows are measured by somebody who scores.",
    cel=(
        f"!{TAUGHT_ALONE} || self.spec.rollout.workflow != 'rlvr' || !has(self.spec.dataset.evaluation) || "
        "has(self.spec.recipe) || has(self.spec.reward.verifier)"
    ),
)
def unscored_evaluation(job: RLJob, facts: Facts) -> str | None:
    spec = job.spec
    if needs_scores(spec) or spec.rollout.workflow != "rlvr" or spec.dataset.evaluation is None:
        return None
    if spec.reward.verifier is not None or (spec.recipe is not None and facts.recipe_defines_reward is not False):
        return None
    return "the teacher needs no scores, but held-out rows do, and nobody gives any"


@rule(
    "A teacher with an endpoint has its weights where it is served.",
    cel=(
        "!has(self.spec.algorithm.teacher) || !has(self.spec.algorithm.teacher.endpoint) || "
        "self.spec.algorithm.teacher.placement == 'same'"
    ),
)
def teacher_served_weights(job: RLJob, facts: Facts) -> str | None:
    teacher = job.spec.algorithm.teacher
    if teacher is None or teacher.endpoint is None or teacher.placement == "same":
        return None
    return f"the trainer holds nothing of a served teacher, and placement is {teacher.placement}"


@rule(
    "A served teacher says log-probabilities at temperature 1, so the policy samples at 1.",
    cel=(
        "!has(self.spec.algorithm.teacher) || !has(self.spec.algorithm.teacher.endpoint) || "
        "self.spec.rollout.sampling.temperature == 1.0"
    ),
)
def teacher_served_temperature(job: RLJob, facts: Facts) -> str | None:
    teacher, temperature = job.spec.algorithm.teacher, job.spec.rollout.sampling.temperature
    if teacher is None or teacher.endpoint is None or temperature == 1:
        return None
    return f"servers score a prompt's tokens at temperature 1, and the policy would sample at {temperature:g}"
