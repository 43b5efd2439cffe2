"""From a job's algorithm to the options of advantages and loss: names resolved, every field in its place."""

from typing import cast

from areal.spec import algorithm as fields
from areal.spec.job import JobSpec
from areal.spec.resolved_algorithm import AlgorithmValues, one_turn, resolve

from areal_trainer.algorithms.advantages import AdvantageOptions, OverlongPenalty, RewardKL, ShapingOptions
from areal_trainer.algorithms.baseline import BaselineOptions
from areal_trainer.algorithms.policy import KLLoss, LossEstimator, PolicyOptions, Surrogate, ValueOptions
from areal_trainer.algorithms.ratio import Estimator, WeightTruncation
from areal_trainer.algorithms.rejection import DPPOOptions, RejectionRule
from areal_trainer.critic import CriticOptions
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.optimizer import RateSchedule
from areal_trainer.objective import ObjectiveOptions

_WITH_CRITIC = 20.0  # of an advantage: a critic's values bound none, and usual ones are a few deviations


def advantage_options(spec: JobSpec) -> AdvantageOptions:
    """Options by which this job's rewards become advantages."""
    algorithm, advanced, meant = spec.algorithm, spec.algorithm.advanced, resolve(spec)
    overlong = None
    if meant.overlong is not None and meant.overlong.max_tokens is not None:
        overlong = OverlongPenalty(meant.overlong.max_tokens, meant.overlong.window, meant.overlong.factor)
    penalty = None
    if meant.kl is not None and meant.kl.where == "reward":
        penalty = RewardKL(meant.kl.coefficient, cast(Estimator, meant.kl.kind))
    return AdvantageOptions(
        shaping=ShapingOptions(advanced.reward_bias, meant.reward_scale, advanced.reward_clip, overlong),
        baseline=BaselineOptions(
            mean=meant.advantage_mean,
            std=meant.advantage_std,
            leave_one_out=meant.leave_one_out,
            unbiased=advanced.advantage_unbiased,
            mask_zero_variance=meant.zero_variance != "keep",
            epsilon=advanced.advantage_epsilon,
        ),
        truncated=algorithm.truncated,
        kl=penalty,
        gamma=advanced.gamma,
        lam=advanced.lam,
        by_turn=advanced.gae_level == "turn",
        normalise=meant.advantage_normalize,
        clip=advanced.advantage_clip or (_WITH_CRITIC if meant.critic is not None else None),
        teacher=algorithm.teacher.coefficient if algorithm.teacher is not None else None,
    )


def objective_options(spec: JobSpec) -> ObjectiveOptions:
    """Options of the loss that this job minimises."""
    meant = resolve(spec)
    return ObjectiveOptions(
        policy=_policy(spec.algorithm, meant),
        proximal=meant.proximal,
        aggregation=meant.loss_aggregation,
        horizon=spec.rollout.sampling.max_new_tokens if one_turn(spec) else spec.rollout.max_sample_tokens,
        second_moment=meant.m2_threshold,
    )


def critic_options(spec: JobSpec) -> CriticOptions | None:
    """Options of this job's critic; None without one."""
    critic = resolve(spec).critic
    if critic is None:
        return None
    return CriticOptions(
        schedule_of(spec, critic.learning_rate),
        ValueOptions(critic.value_clip, critic.loss),
        critic.warmup_steps,
        critic.bootstrap,
    )


def schedule_of(spec: JobSpec, peak: float) -> RateSchedule:
    """Schedule of a learning rate with this peak: how it warms up and falls."""
    wanted = spec.optimizer
    return RateSchedule(peak, wanted.warmup_steps, wanted.lr_schedule, wanted.min_lr_ratio)


def adamw_options(spec: JobSpec) -> AdamWOptions:
    """AdamW's settings, and where its moments are."""
    wanted = spec.optimizer
    return AdamWOptions(
        betas=wanted.betas, epsilon=wanted.eps, weight_decay=wanted.weight_decay, grad_clip=wanted.grad_clip,
        state=spec.trainer.optimizer_state,
    )  # fmt: skip


def _policy(algorithm: fields.PolicyGradient, meant: AlgorithmValues) -> PolicyOptions:
    penalty = None
    if meant.kl is not None and meant.kl.where == "loss":
        penalty = KLLoss(meant.kl.coefficient, cast(LossEstimator, meant.kl.kind))
    advanced = algorithm.advanced
    given = [*([advanced.rejection] if advanced.rejection else []), *advanced.rejections]
    cut = advanced.truncate
    low, high = meant.clip_low, meant.clip_high
    surrogate: Surrogate | DPPOOptions
    if meant.surrogate == "dppo":
        surrogate = DPPOOptions(advanced.divergence, low, high, advanced.quadratic)
    else:
        taus = (advanced.tau_positive, advanced.tau_negative)
        surrogate = Surrogate(meant.surrogate, low, high, advanced.dual_clip, *taus)
    return PolicyOptions(
        surrogate=surrogate,
        importance=meant.importance_level,
        weight=advanced.weight,
        truncate=None if cut is None else WeightTruncation(cut.upper, cut.lower),
        rejection=tuple(RejectionRule(one.metric, one.level, one.aggregate, one.highest, one.lower) for one in given),
        kl=penalty,
        entropy_coefficient=algorithm.entropy_coefficient,
    )
