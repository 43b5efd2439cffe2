"""Rules of the off-policy correction: weights, truncation, rejection, and DPPO, which has none of them."""

import math

from areal.spec.algorithm import RejectionBlock
from areal.spec.job import RLJob
from areal.spec.resolved_algorithm import resolve
from areal.spec.rules import Facts, rule, warning

NOISE = 0.02  # usual difference of a token's log-probability between an engine and the trainer in bfloat16


@rule("Every rejection keeps some tokens and refuses others.")
def rejection_bounds(job: RLJob, facts: Facts) -> str | None:
    advanced = job.spec.algorithm.advanced
    every = [*([advanced.rejection] if advanced.rejection else []), *advanced.rejections]
    return next((said for each in every if (said := _bounds(each)) is not None), None)


def _bounds(given: RejectionBlock) -> str | None:
    upper, lower, metric = given.highest, given.lower, given.metric
    if upper is None and lower is None:
        return f"a rejection by {metric} without a bound refuses nothing"
    if (given.aggregate == "max" and lower is not None) or (given.aggregate == "min" and upper is not None):
        side, other = ("upper", "lower") if given.aggregate == "max" else ("lower", "upper")
        return f"aggregate {given.aggregate} is for {side}: an {other} bound would ask for one token only"
    least = {"ratio": 1.0, "k1": -math.inf}.get(metric, 0.0)
    if upper is not None and upper <= least:
        return f"upper {upper:g} of {metric} refuses the very policy that made the token, whose {metric} is {least:g}"
    if lower is not None and metric != "k1" and lower <= 0:
        return f"lower {lower:g} of {metric} refuses nothing: it is never below 0"
    if upper is not None and lower is not None and lower > upper:
        return f"lower {lower:g} > upper {upper:g} of {metric}: everything is refused"
    return None


@rule("The behaviour weight's bounds are in order: truncate.lower ≤ truncate.upper.")
def truncate_bounds(job: RLJob, facts: Facts) -> str | None:
    given = job.spec.algorithm.advanced.truncate
    if given is None or given.lower is None or given.lower <= given.upper:
        return None
    return f"truncate.lower {given.lower:g} > truncate.upper {given.upper:g}: every weight would be {given.upper:g}"


@warning("A weight is truncated below the ratio at which its token is left out.")
def truncate_idle(job: RLJob, facts: Facts) -> str | None:
    advanced = job.spec.algorithm.advanced
    given, by = advanced.truncate, advanced.rejection
    if given is None or by is None or (by.metric, by.level, advanced.weight) != ("ratio", "token", "token"):
        return None
    if by.highest is None or by.highest > given.upper:
        return None
    return f"tokens are left out above {by.highest:g}, so no weight reaches truncate.upper {given.upper:g}"


@warning("A product over a sequence's tokens keeps its spread: σ·√n ≤ 1.")
def weight_product(job: RLJob, facts: Facts) -> str | None:
    tokens = job.spec.rollout.sampling.max_new_tokens
    spread = NOISE * math.sqrt(tokens)
    if job.spec.algorithm.advanced.weight != "sequenceProduct" or spread <= 1:
        return None
    return (
        f"with a usual mismatch of σ = {NOISE:g} a token, the weight of an answer of {tokens} tokens spreads by "
        f"e^(σ√n) = e^{spread:.2f}: a few sequences would decide the step"
    )


@rule(
    "DPPO measures each token from the policy that made it: no weight, truncation, rejection or other proximal policy."
)
def dppo_alone(job: RLJob, facts: Facts) -> str | None:
    advanced, meant = job.spec.algorithm.advanced, resolve(job.spec)
    if meant.surrogate != "dppo":
        return None
    given = {
        f"proximal {meant.proximal}": meant.proximal != "behaviour",
        f"weight {advanced.weight}": advanced.weight != "token",
        "truncate": advanced.truncate is not None,
        "rejection": advanced.rejection not in (None, RejectionBlock()) or bool(advanced.rejections),
        "importanceLevel sequence": meant.importance_level != "token",
    }
    found = next((what for what, there in given.items() if there), None)
    return None if found is None else f"{found} would act twice or not at all: the ratio is π_θ/π_behav itself"


@rule("divergence and quadratic are DPPO's.")
def dppo_unused(job: RLJob, facts: Facts) -> str | None:
    advanced, surrogate = job.spec.algorithm.advanced, resolve(job.spec).surrogate
    if surrogate == "dppo" or (advanced.divergence == "tv" and advanced.quadratic == 0):
        return None
    return f"surrogate {surrogate} has neither divergence {advanced.divergence} nor quadratic {advanced.quadratic:g}"


@rule(
    "Training samples end where the policy ends them: minNewTokens is 0, or otherDistribution is ignore.",
    cel=(
        "self.spec.rollout.sampling.minNewTokens == 0 || "
        "(self.spec.rollout.sampling.otherDistribution == 'ignore' && "
        "self.spec.rollout.sampling.minNewTokens <= self.spec.rollout.sampling.maxNewTokens)"
    ),
)
def min_new_tokens(job: RLJob, facts: Facts) -> str | None:
    sampling = job.spec.rollout.sampling
    least, most = sampling.min_new_tokens, sampling.max_new_tokens
    if least > most:
        return f"minNewTokens {least} > maxNewTokens {most}"
    if least == 0 or sampling.other_distribution == "ignore":
        return None
    return f"the first {least} tokens would be drawn without end tokens, and the trainer's distribution has them"
