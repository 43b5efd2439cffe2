"""From a job's algorithm to the options of advantages and loss: names resolved, every field in its place."""

from __future__ import annotations

from typing import cast

from areal.spec import algorithm as fields
from areal.spec.job import JobSpec
from areal.spec.resolved_algorithm import Resolved, one_turn, resolve

from areal_trainer.algorithms.advantages import AdvantageOptions, RewardKL
from areal_trainer.algorithms.baseline import BaselineOptions
from areal_trainer.algorithms.kl import Estimator
from areal_trainer.algorithms.policy import KLLoss, LossEstimator, PolicyOptions
from areal_trainer.algorithms.rejection import Rejection
from areal_trainer.algorithms.shaping import Overlong, ShapingOptions
from areal_trainer.algorithms.surrogate import Surrogate
from areal_trainer.algorithms.value_loss import ValueOptions
from areal_trainer.algorithms.weight import Truncate
from areal_trainer.critic import CriticOptions
from areal_trainer.engine.schedule import Schedule
from areal_trainer.objective import ObjectiveOptions


def advantage_options(spec: JobSpec) -> AdvantageOptions:
    """How this job's rewards become advantages."""
    algorithm, meant = spec.algorithm, resolve(spec)
    overlong = None
    if meant.overlong is not None and meant.overlong.max_tokens is not None:
        overlong = Overlong(meant.overlong.max_tokens, meant.overlong.window, meant.overlong.factor)
    penalty = None
    if meant.kl is not None and meant.kl.where == "reward":
        penalty = RewardKL(meant.kl.coefficient, cast(Estimator, meant.kl.kind))
    return AdvantageOptions(
        shaping=ShapingOptions(algorithm.reward_bias, meant.reward_scale, algorithm.reward_clip, overlong),
        baseline=BaselineOptions(
            mean=meant.advantage_mean,
            std=meant.advantage_std,
            leave_one_out=meant.leave_one_out,
            unbiased=algorithm.advantage_unbiased,
            mask_zero_variance=meant.zero_variance != "keep",
            epsilon=algorithm.advantage_epsilon,
        ),
        truncated=algorithm.truncated,
        kl=penalty,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        normalise=meant.advantage_normalize,
        teacher=algorithm.teacher.coefficient if algorithm.teacher is not None else None,
    )


def objective_options(spec: JobSpec) -> ObjectiveOptions:
    """What this job minimises."""
    meant = resolve(spec)
    return ObjectiveOptions(
        policy=_policy(spec.algorithm, meant),
        proximal=meant.proximal,
        aggregation=meant.loss_aggregation,
        horizon=spec.rollout.sampling.max_new_tokens if one_turn(spec) else spec.rollout.max_sample_tokens,
        second_moment=meant.m2_threshold,
    )


def critic_options(spec: JobSpec) -> CriticOptions | None:
    """How this job's critic learns; None without one."""
    algorithm, critic = spec.algorithm, resolve(spec).critic
    if critic is None:
        return None
    return CriticOptions(
        Schedule(critic.learning_rate, algorithm.warmup_steps, algorithm.lr_schedule, algorithm.min_lr_ratio),
        ValueOptions(critic.value_clip, critic.loss),
        critic.warmup_steps,
        critic.bootstrap,
    )


def _policy(algorithm: fields.PolicyGradient, meant: Resolved) -> PolicyOptions:
    penalty = None
    if meant.kl is not None and meant.kl.where == "loss":
        penalty = KLLoss(meant.kl.coefficient, cast(LossEstimator, meant.kl.kind))
    given = [*([algorithm.rejection] if algorithm.rejection else []), *algorithm.rejections]
    cut = algorithm.truncate
    return PolicyOptions(
        surrogate=Surrogate(
            meant.surrogate,
            meant.clip_low,
            meant.clip_high,
            algorithm.dual_clip,
            algorithm.tau_positive,
            algorithm.tau_negative,
        ),
        importance=meant.importance_level,
        weight=algorithm.weight,
        truncate=None if cut is None else Truncate(cut.upper, cut.lower),
        rejection=tuple(Rejection(one.metric, one.level, one.aggregate, one.highest, one.lower) for one in given),
        kl=penalty,
        entropy_coefficient=algorithm.entropy_coefficient,
    )
