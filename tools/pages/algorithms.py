"""Generator of docs/algorithms.md from the names' defaults, so that the page never says what the trainer doesn't."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from areal.spec.resolved_algorithm import BASE, NAMES, camel, shown

_HEAD = """# Algorithms

`algorithm.name` is a set of defaults, nothing else: any field may be given beside it unless a rule refuses the
combination ([the job file](rljob.md) has every field and rule), and `areal check job.yaml` prints the values in
force. This page is made from the code: `make docs`.

## Names and their defaults

An empty cell is GRPO's value.
"""

_MEANING: dict[str, tuple[str, str]] = {
    "PPO": (
        "1707.06347, 1506.02438",
        "A critic, a second model with a head of one number, says what each state is worth; advantages are what came "
        "out above that (GAE), whitened over the batch, so a group may be one sample. The critic learns returns, which "
        "don't depend on the policy's ratio: a token that is left out for its age still trains it. With η its targets "
        "come from policies up to η versions old.",
    ),
    "GRPO": (
        "2402.03300",
        "Rewards are centred and scaled within each group. With η the clip is centred on the weights at the "
        "start of the step, and each token weighs π_prox/π_behav: a token η versions old is corrected, not "
        "trusted less.",
    ),
    "DrGRPO": (
        "2503.20783",
        "No deviation and no length in any weight: a hard prompt weighs as much as an easy one, a long "
        "answer's token as much as a short one's. Older versions of the policy had other lengths, and the "
        "constant doesn't follow them.",
    ),
    "DAPO": (
        "2503.14476",
        "Clips less above than below, replaces groups without a signal and punishes answers near the longest "
        "length. Replaced groups are admitted later, so with η they are made by newer weights than their "
        "batch's others.",
    ),
    "RLOO": (
        "2402.14740",
        "REINFORCE with the other samples' mean as baseline: with one update a step u is 1. The baseline is "
        "of samples of the same group, which share their η.",
    ),
    "REINFORCE++": (
        "2501.03262",
        "No group: advantages are whitened over the batch, so a group may be one sample. With η the batch "
        "mixes versions, and whitening compares answers of different policies. A KL penalty to the start "
        "model is in the reward.",
    ),
    "REINFORCE++Baseline": (
        "2501.03262",
        "The group's mean is subtracted and the result whitened over the batch; a KL to the start model is in "
        "the loss, weighted by π_prox/π_behav like the policy's term, so it is of the proximal policy at "
        "every age.",
    ),
    "GSPO": (
        "2507.18071",
        "One ratio a sequence, the geometric mean of its tokens', by which each token's own advantage is weighed "
        "(GSPO-token, eq. 14): a teacher, a critic or a KL in the reward keeps its say by token. An answer that was "
        "interrupted by new weights has tokens of several versions: the mean runs over all of them. The clip is about "
        "a thousandth of PPO's.",
    ),
    "SAPO": (
        "2511.20347",
        "A sigmoid gate instead of a clip: the gradient fades and never stops. With one update a step the "
        "gate's slope is 1 and age acts through the behaviour weight alone.",
    ),
    "LitePPO": (
        "2508.08221",
        "The group's mean, and the batch's deviation around the groups' means. With η the deviation is of rewards of "
        "several versions.",
    ),
    "M2PO": (
        "2510.01161",
        "No clip: the tokens that moved farthest from their behaviour policy are left out until the second "
        "moment of the rest is small. Made for large η: the older the batch, the more tokens go.",
    ),
    "CISPO": (
        "2506.13585",
        "The ratio is clipped as a constant in front of log π, so no token loses its gradient. With one "
        "update a step it is REINFORCE with the behaviour weight, whatever η.",
    ),
    "OnPolicyDistillation": (
        "2306.13649, 2306.08543",
        "No reward: a teacher says of each token that the policy sampled how likely it would have been there, and the "
        "token's advantage is −(log π_prox − log teacher), the negative reverse KL of that token; later tokens change "
        "nothing (discount 0). The teacher is compared with the weights at the start of the step, and π_prox/π_behav "
        "weighs each token, so samples of versions up to η old give the divergence of the policy that is updated. "
        "`rewardScale` adds rewards; any other name takes a `teacher` beside its rewards (arXiv 2506.02208).",
    ),
    "DPPO": (
        "2602.04879",
        "A mask by probabilities instead of a clip by ratios: a token is left out where its advantage pulls its "
        "probability farther than δ (`clipLow`, `clipHigh`) from where the behaviour policy had it, by total variation "
        "or by the KL of two coins (`divergence`). The ratio is π_θ/π_behav itself, so there is no proximal policy, "
        "weight or rejection, and the mask is centred on the token's own version whatever η. `quadratic` adds Kimi's "
        "term (arXiv 2602.02276).",
    ),
    "MaxRL": (
        "2602.02710",
        "Rewards are centred and divided by the group's mean: a rare success weighs up to n − 1, which is the gradient "
        "of the likelihood that an answer is right. Rewards are from 0 on; of a group that earned nothing, nothing is "
        "learned. With η the mean is of samples that share their η.",
    ),
}

_ASYNCHRONY = """## What a name means under asynchrony

Three policies: behaviour made the token, proximal is the weights at the start of the step, current is being
optimised. For every name the loss of a token is w·L(u, A) with the constant w = π_prox/π_behav and u = π_θ/π_prox,
so age is corrected by w and the trust region never moves back to an old policy. `rejection` leaves out tokens that
moved too far; it changes no other token's weight. `maxStaleness` (η) bounds how old a token may be.
"""

_ELSEWHERE = """## Coming from AReaL, verl or TRL

Fields of `algorithm`, and what they are called elsewhere. — means that there is none.
"""

_NAMES_ELSEWHERE: Sequence[tuple[str, str, str, str]] = (
    ("groupSize", "gconfig.n_samples", "rollout.n", "num_generations"),
    (
        "batchSize (groups)",
        "train_dataset.batch_size",
        "data.train_batch_size",
        "generation_batch_size / num_generations",
    ),
    ("maxStaleness 2", "rollout.max_head_offpolicyness 0", "staleness_threshold (a fraction)", "max_staleness"),
    (
        "miniBatches 1 (a count)",
        "actor.ppo_n_minibatches 4 (a count)",
        "ppo_mini_batch_size (a **size**)",
        "steps_per_generation",
    ),
    ("clipLow, clipHigh", "eps_clip, eps_clip_higher", "clip_ratio_low, clip_ratio_high", "epsilon, epsilon_high"),
    ("dualClip off", "c_clip", "clip_ratio_c **3, always on**", "delta"),
    ("gamma 1", "discount", "algorithm.gamma", "gamma"),
    ("lambda 1", "gae_lambda", "algorithm.lam", "lam .95"),
    ("gaeLevel: token, turn", "turn-level GAE", "—", "—"),
    ("critic.valueClip .5", "critic.eps_clip", "critic.cliprange_value", "cliprange_value .2"),
    ("critic.warmupSteps", "—", "trainer.critic_warmup", "—"),
    ("critic.bootstrap", "always, by padded length", "never", "never"),
    (
        "advantageMean, advantageStd",
        "reward_norm.mean_level, std_level",
        "adv_estimator, norm_adv_by_std_in_grpo",
        "scale_rewards",
    ),
    ("advantageUnbiased **false**", "std_unbiased true", "always", "always"),
    ("advantageEpsilon 1e-6", "1e-5", "1e-6", "1e-4"),
    ("leaveOneOut", "reward_norm.mean_leave1out", "adv_estimator=rloo", "RLOOTrainer"),
    ("advantageNormalize", "adv_norm", "inside gae and reinforce_plus_plus", "normalize_advantages"),
    ("advantageClip 20 with a critic", "—", "—", "—"),
    (
        "rewardBias, rewardScale, rewardClip",
        "reward_bias, reward_scaling, reward_clip 20",
        "in the reward function",
        "reward_weights, reward_clip_range",
    ),
    (
        "overlong {maxTokens, window, factor}",
        "overlong_tokens, overlong_penalty_factor",
        "overlong_buffer_cfg {len, penalty_factor}",
        "get_soft_overlong_punishment",
    ),
    ("truncated: neutral", "mask_no_eos_with_zero", "—", "—"),
    ("truncated: mask", "—", "—", "mask_truncated_completions"),
    ("zeroVariance: filter", "should_accept_fn", "algorithm.filter_groups", "—"),
    (
        "kl {as: reward}",
        "kl_ctl **0.1**, kl_estimator",
        "use_kl_in_reward, kl_penalty",
        "kl_coef .05 (PPO), beta .05 (RLOO)",
    ),
    ("kl {as: loss}", "—", "use_kl_loss, kl_loss_coef, kl_loss_type", "beta 0 (k3)"),
    ("entropyCoefficient 0", "—", "entropy_coeff", "entropy_coef"),
    (
        "proximal: recompute, trainingPass, loglinear",
        "prox_logp_method recompute, reuse_train_logp, loglinear",
        "bypass_mode: false, —, —",
        "—",
    ),
    (
        "proximal: behaviour, or decoupled: false",
        "use_decoupled_loss False",
        "bypass_mode: true",
        "vllm_importance_sampling_correction False",
    ),
    (
        "weight: token, sequenceMean, sequenceProduct",
        "level token, level sequence, —",
        "rollout_is token, —, sequence",
        "token_*, —, sequence_*",
    ),
    ("truncate.upper", "action clamp", "rollout_is_threshold 2", "*_truncate, clip_max 3"),
    (
        "rejection, rejections",
        "rejection_sampling {level, metric, agg, upper, lower}",
        "rollout_rs, rollout_rs_threshold",
        "*_mask, clip_min, clip_max",
    ),
    ("importanceLevel", "importance_sampling_level", "loss_mode gspo", "importance_sampling_level"),
    (
        "name: SAPO, tauPositive, tauNegative",
        "use_sapo_loss, sapo_tau_pos, sapo_tau_neg",
        "loss_mode sapo, tau_pos, tau_neg",
        "loss_type sapo",
    ),
    (
        "name: CISPO, clipHigh 4 (the cap is 5)",
        "use_cispo_loss, eps_clip_higher 4",
        "loss_mode cispo, clip_ratio_high",
        "loss_type cispo, epsilon_high **5, the cap itself**",
    ),
    ("m2Threshold .04", "m2_threshold", "—", "—"),
    ("name: DPPO, divergence, quadratic", "—", "loss_mode dppo_tv, dppo_kl", "—"),
    (
        "teacher {coefficient 1}",
        "teacher {rl_loss_weight, distill_loss_weight .005}, in the loss",
        "distillation {use_policy_gradient, use_task_rewards}",
        "GKD {lmbda, beta}, whole distributions",
    ),
    (
        "lossAggregation: token, sequence, constant",
        "token only",
        "token-mean, seq-mean-token-mean, seq-mean-token-sum-norm",
        "loss_type dapo, grpo, dr_grpo",
    ),
    (
        "learningRate, betas, weightDecay, eps, gradClip",
        "optimizer.lr, beta1, beta2, weight_decay, eps, gradient_clipping",
        "optim.lr, betas, weight_decay, clip_grad",
        "learning_rate, adam_beta1, adam_beta2, weight_decay, max_grad_norm",
    ),
)

_TRAPS = """Where the same word means something else: verl's mini-batch is a size, here and in AReaL it is a count.
verl's bounds on `token_k1` are of −log r, so "lo_hi" there keeps r in [1/hi, 1/lo]. verl's GSPO and SAPO aggregate by
sequence. TRL with vLLM masks whole sequences by their *product* ratio above 3 unless told otherwise. AReaL weighs
by π_prox/π_behav only with `rejection_sampling`; here the weight is always applied and rejection is a thing of its
own. AReaL, verl and TRL count the tokens of flat groups in the mean with an advantage of 0; here masked groups
aren't counted (`zeroVariance: keep` counts them). The deviation is the population's by default;
`advantageUnbiased: true` gives the others'. [Deviations](deviations.md) lists what differs in numbers, each with its
test.
"""


def render() -> str:
    """The whole page."""
    columns = list(BASE)
    rows = [
        (f"**{name}**", *(_cell(column, values if name != "GRPO" else BASE) for column in columns))
        for name, values in NAMES.items()
    ]
    parts = [_HEAD, _table(("name", *(f"`{camel(column)}`" for column in columns)), rows), _ASYNCHRONY]
    for name in NAMES:
        paper, meaning = _MEANING[name]
        parts.append(f"**{name}** (arXiv {paper}). {meaning}\n")
    parts += [_ELSEWHERE, _table(("here", "AReaL", "verl", "TRL"), _NAMES_ELSEWHERE), _TRAPS]
    return "\n".join(parts)


def _cell(column: str, values: dict[str, object]) -> str:
    if column not in values:
        return ""
    if column == "overlong" and values[column] is not None:
        return "a fifth of maxNewTokens, at most 4096"
    return _DERIVED.get(column, "none") if values[column] is None else shown(values[column])


_DERIVED = {"zero_variance": "mask with advantageMean group and no teacher, else keep", "clip_high": "clipLow"}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
