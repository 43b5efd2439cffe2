"""Rules of the algorithm: which baselines, ratios, clips and regularisers go together."""

from areal.spec.job import RLJob
from areal.spec.resolved_algorithm import named, one_turn, resolve
from areal.spec.rules import Facts, rule, warning
from areal.spec.rules_correction import NOISE

_WIDE_FOR_SEQUENCES = 0.05
_NARROW_FOR_TOKENS = 0.01


@rule(
    "What compares the samples of a group has at least two: groupSize ≥ 2.",
    cel=(
        f"({named('advantage_mean')} != 'group' && {named('advantage_std')} != 'group') || "
        "self.spec.algorithm.groupSize >= 2"
    ),
)
def group_size(job: RLJob, facts: Facts) -> str | None:
    size, meant = job.spec.algorithm.group_size, resolve(job.spec)
    if size >= 2 or "group" not in (meant.advantage_mean, meant.advantage_std):
        return None
    return f"a group of {size} has nothing to compare: its advantage is reward − mean = 0, so nothing is learned"


@rule("leaveOneOut is for a group's mean: advantageMean is group.")
def leave_one_out(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if not meant.leave_one_out or meant.advantage_mean == "group":
        return None
    return f"a sample can't be left out of its group's mean: advantageMean is {meant.advantage_mean}"


@warning("leaveOneOut goes without a deviation: advantageStd is none.")
def leave_one_out_scaled(job: RLJob, facts: Facts) -> str | None:
    meant, size = resolve(job.spec), job.spec.algorithm.group_size
    if not meant.leave_one_out or meant.advantage_std == "none" or size < 2:
        return None
    factor = size / (size - 1)
    return f"with a deviation it multiplies every advantage by n/(n − 1) = {size}/{size - 1} = {factor:.2f}, no more"


@rule("Groups of equal rewards are left out under a group's mean only.")
def zero_variance_baseline(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if meant.zero_variance == "keep" or meant.advantage_mean == "group":
        return None
    return (
        f"with advantageMean {meant.advantage_mean} a group of equal rewards has an advantage other than 0: "
        f"zeroVariance {meant.zero_variance} would bend the baseline"
    )


@rule("Advantages are divided by the group's mean reward where that mean is subtracted, of rewards from 0 on.")
def mean_as_scale(job: RLJob, facts: Facts) -> str | None:
    meant, bias = resolve(job.spec), job.spec.algorithm.advanced.reward_bias
    if meant.advantage_std != "mean":
        return None
    if meant.advantage_mean != "group" or meant.leave_one_out:
        return "(r − μ)/μ has one μ, that of the whole group"
    if bias >= 0 and meant.reward_scale >= 0 and meant.overlong is None:
        return None
    return (
        f"rewardBias {bias:g}, rewardScale {meant.reward_scale:g} and an overlong penalty make rewards below 0, and "
        "(r − μ)/μ of such has the wrong sign or no bound"
    )


@rule(
    "proximal: trainingPass goes with one update a step: miniBatches is 1.",
    cel="self.spec.algorithm.advanced.proximal != 'trainingPass' || self.spec.algorithm.miniBatches <= 1",
)
def training_pass(job: RLJob, facts: Facts) -> str | None:
    algorithm = job.spec.algorithm
    if algorithm.advanced.proximal != "trainingPass" or algorithm.mini_batches == 1:
        return None
    return (
        f"from the second of {algorithm.mini_batches} updates on π_prox would be π_θ again: u = 1, and nothing holds "
        "the policy near"
    )


@rule(
    "proximal: loglinear goes with several updates a step: miniBatches ≥ 2.",
    cel="self.spec.algorithm.advanced.proximal != 'loglinear' || self.spec.algorithm.miniBatches >= 2",
)
def log_linear(job: RLJob, facts: Facts) -> str | None:
    algorithm = job.spec.algorithm
    if algorithm.advanced.proximal != "loglinear" or algorithm.mini_batches > 1:
        return None
    return "with miniBatches 1 the training pass gives π_prox exactly, at no cost: an estimate only loses"


@rule("A KL penalty in the reward has the log-probabilities of the policy it improves before the update.")
def kl_proximal(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if meant.kl is None or meant.kl.where != "reward" or meant.proximal in ("recompute", "behaviour"):
        return None
    return f"π_prox is needed before the advantages, and proximal {meant.proximal} has it only in the loss (+33 % time)"


@rule("k1 is for the reward, k3u for the loss.")
def kl_estimator(job: RLJob, facts: Facts) -> str | None:
    found = resolve(job.spec).kl
    if found is None:
        return None
    if found.where == "loss" and found.kind == "k1":
        return "k1 as a loss has an expected gradient of 0: it would regularise nothing (arXiv 2510.01555)"
    if found.where == "reward" and found.kind == "k3u":
        return "k3u weighs by π_θ/π_behav with its gradient, and a reward has 0 gradient"
    return None


@rule("M2PO's mask is taken over the whole mini-batch: proximal is recompute.")
def second_moment(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if meant.m2_threshold is None or meant.proximal == "recompute":
        return None
    return (
        f"m2Threshold {meant.m2_threshold:g} needs π_prox of every token of a mini-batch before its loss; with "
        f"proximal {meant.proximal} the mask would depend on how tokens are packed"
    )


@rule(
    "dualClip bounds PPO's clip and no other surrogate.",
    cel=f"!has(self.spec.algorithm.advanced.dualClip) || {named('surrogate')} == 'ppo'",
)
def dual_clip(job: RLJob, facts: Facts) -> str | None:
    bound, surrogate = job.spec.algorithm.advanced.dual_clip, resolve(job.spec).surrogate
    if bound is None or surrogate == "ppo":
        return None
    return f"dualClip {bound:g} has nothing to bound: surrogate {surrogate} doesn't clip a second time"


@rule(
    "CISPO weighs tokens: importanceLevel is token.",
    cel=f"{named('surrogate')} != 'cispo' || {named('importance_level')} == 'token'",
)
def cispo_level(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if meant.surrogate != "cispo" or meant.importance_level == "token":
        return None
    return "no surrogate is published for CISPO's clipped weight of a whole sequence: one weight, not one a token"


@rule("u is clipped below a positive number: clipLow < 1, but for CISPO and DPPO.")
def clip_low(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if meant.clip_low < 1 or meant.surrogate in ("cispo", "dppo"):
        return None
    return f"1 − clipLow = {1 - meant.clip_low:g}, and no ratio of probabilities is lower: nothing is clipped there"


@warning("The upper clip is no tighter than the lower one.")
def clip_range(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if meant.clip_high >= meant.clip_low:
        return None
    return (
        f"clipHigh {meant.clip_high:g} < clipLow {meant.clip_low:g}: "
        "likelier tokens are held back more than unlikelier ones"
    )


@warning(f"A sequence's ratio is clipped within {_WIDE_FOR_SEQUENCES:g}.")
def clip_wide(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    widest = max(meant.clip_low, meant.clip_high)
    if meant.surrogate != "ppo" or meant.importance_level == "token" or widest <= _WIDE_FOR_SEQUENCES:
        return None
    return f"the mean of 1000 log-ratios spreads by 0.05/√1000 = 1.6e-3: a clip of {widest:g} never acts"


@warning(f"A token's ratio is clipped no closer than {_NARROW_FOR_TOKENS:g}.")
def clip_narrow(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    closest = min(meant.clip_low, meant.clip_high)
    if meant.surrogate != "ppo" or meant.importance_level == "sequence" or closest >= _NARROW_FOR_TOKENS:
        return None
    return f"bfloat16 alone moves a log-probability by about {NOISE:g}: noise would decide a clip of {closest:g}"


@warning("Rewards at the end of an answer are not discounted: gamma is 1.")
def gamma(job: RLJob, facts: Facts) -> str | None:
    discount, tokens = job.spec.algorithm.advanced.gamma, job.spec.rollout.sampling.max_new_tokens
    if discount == 1:
        return None
    return (
        f"the first of {tokens} tokens gets γ^{tokens - 1} = {discount ** (tokens - 1):.2g} of the outcome, "
        "though it decides as much as the last"
    )


@rule("The overlong penalty's window fits into the longest answer.")
def overlong_window(job: RLJob, facts: Facts) -> str | None:
    found = resolve(job.spec).overlong
    if found is None or found.max_tokens is None or found.window <= found.max_tokens:
        return None
    free = found.max_tokens - found.window
    return f"maxTokens − window = {found.max_tokens} − {found.window} = {free} tokens would be free of the penalty"


@rule("An overlong penalty over several turns says its longest length.")
def overlong_turns(job: RLJob, facts: Facts) -> str | None:
    given = job.spec.algorithm.overlong
    if given is None or given.max_tokens is not None or one_turn(job.spec):
        return None
    turn = job.spec.rollout.sampling.max_new_tokens
    return f"the workflow {job.spec.rollout.workflow} may have many turns of {turn} tokens: which length is too long?"


@warning("Right and wrong stay apart: rewardClip is no less than what the verifier's rewards become.")
def reward_clip(job: RLJob, facts: Facts) -> str | None:
    advanced = job.spec.algorithm.advanced
    limit = advanced.reward_clip
    if limit is None or job.spec.reward.verifier in (None, "custom", "model"):
        return None
    scale = abs(resolve(job.spec).reward_scale)
    largest = max(abs(reward + advanced.reward_bias) * scale for reward in (0.0, 1.0))
    if largest <= limit:
        return None
    return f"rewards of 0 and 1 become as large as {largest:g} and are cut to ±{limit:g}"


@rule(
    "GAE's λ is for a critic: without one lambda is 1.",
    cel=(
        "double(self.spec.algorithm.advanced.lambda) >= 1.0 || self.spec.algorithm.name == 'PPO' || "
        "has(self.spec.algorithm.critic)"
    ),
)
def lambda_without_critic(job: RLJob, facts: Facts) -> str | None:
    lam = job.spec.algorithm.advanced.lam
    if lam == 1 or resolve(job.spec).critic is not None:
        return None
    return f"without values (γλ)^k is a second discount: lambda {lam:g} would fade the reward toward the first token"


@warning("A critic is the only baseline: advantageMean is none.")
def critic_and_baseline(job: RLJob, facts: Facts) -> str | None:
    meant = resolve(job.spec)
    if meant.critic is None or meant.advantage_mean == "none":
        return None
    return f"with advantageMean {meant.advantage_mean} the critic learns reward − mean: one baseline of two is noise"


@rule(
    "The policy learns too: critic.warmupSteps < maxSteps.",
    cel=("!has(self.spec.algorithm.critic) || self.spec.algorithm.critic.warmupSteps < self.spec.algorithm.maxSteps"),
)
def critic_warm_up(job: RLJob, facts: Facts) -> str | None:
    critic, steps = resolve(job.spec).critic, job.spec.algorithm.max_steps
    if critic is None or critic.warmup_steps < steps:
        return None
    return f"the critic learns alone for {critic.warmup_steps} steps, and the run has {steps}"
