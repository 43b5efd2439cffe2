"""Rules of names, models, evaluations, sampling and scoring."""

import math
import re

from areal.spec.job import RLJob
from areal.spec.resolved_algorithm import needs_scores
from areal.spec.rollout import AGENT, ENVIRONMENT
from areal.spec.rules import Facts, rule, rule_of_every_training, warning
from areal.spec.rules_teacher import TAUGHT_ALONE

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 40
_BUILT_IN_WORKFLOWS = ("rlvr", "multi-turn")  # they leave the scoring to somebody else


@rule_of_every_training(
    f"metadata.name is a DNS label (RFC 1035) of at most {_LONGEST_NAME} characters.",
    cel=f"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= {_LONGEST_NAME}",
)
def name(job: RLJob, facts: Facts) -> str | None:
    given = job.metadata.name
    if len(given) > _LONGEST_NAME:
        return f"{given!r} has {len(given)} characters; pods add their own to at most {_LONGEST_NAME}"
    return None if _NAME.fullmatch(given) else f"{given!r} can't be the name of pods and directories"


@rule_of_every_training(
    "Exactly one of model.path and model.uri is given.", cel="has(self.spec.model.path) != has(self.spec.model.uri)"
)
def model_source(job: RLJob, facts: Facts) -> str | None:
    model = job.spec.model
    if (model.path is None) != (model.uri is None):
        return None
    return "neither path nor uri is given" if model.path is None else "both path and uri are given"


@rule_of_every_training(
    "Evaluation is configured only where there are held-out rows.",
    cel="!has(self.spec.evaluation) || has(self.spec.dataset.evaluation)",
)
def evaluation_without_dataset(job: RLJob, facts: Facts) -> str | None:
    if "evaluation" not in job.spec.model_fields_set or job.spec.dataset.evaluation is not None:
        return None
    return (
        f"an evaluation every {job.spec.evaluation.interval_steps} steps was asked, but there is no dataset.evaluation"
    )


@warning(
    "The model is evaluated before the end: evaluation.intervalSteps ≤ maxSteps.",
    cel=(
        "!has(self.spec.evaluation) || !has(self.spec.dataset.evaluation) || "
        "self.spec.evaluation.intervalSteps <= self.spec.algorithm.maxSteps"
    ),
)
def evaluation_interval(job: RLJob, facts: Facts) -> str | None:
    interval, last = job.spec.evaluation.interval_steps, job.spec.algorithm.max_steps
    given = "evaluation" in job.spec.model_fields_set and job.spec.dataset.evaluation is not None
    if not given or interval <= last:
        return None
    return f"every {interval} of {last} steps: only the ends are evaluated"


@rule(
    "pass@k needs k samples: every k of evaluation.passAt is between 1 and evaluation.samples.",
    cel=(
        "!has(self.spec.evaluation) || !has(self.spec.evaluation.passAt) || "
        "self.spec.evaluation.passAt.all(k, k >= 1 && k <= self.spec.evaluation.samples)"
    ),
)
def pass_at(job: RLJob, facts: Facts) -> str | None:
    evaluation = job.spec.evaluation
    wrong = [k for k in evaluation.pass_at if not 1 <= k <= evaluation.samples]
    return f"pass@{wrong[0]} of {evaluation.samples} samples means nothing" if wrong else None


@rule("The best export is the best by a figure that evaluations have: mean, avg@n or pass@k, of all rows or of SET/.")
def export_metric(job: RLJob, facts: Facts) -> str | None:
    export, evaluation = job.spec.export, job.spec.evaluation
    if export is None or export.metric.rpartition("/")[2] in evaluation.figures:
        return None
    return f"there is no {export.metric!r}; an evaluation of this job has {', '.join(evaluation.figures)}"


@warning(
    "Each export is evaluated: export.intervalSteps is a multiple of evaluation.intervalSteps.",
    cel=(
        "!has(self.spec.export) || !has(self.spec.dataset.evaluation) || self.spec.export.intervalSteps % "
        "(has(self.spec.evaluation) ? self.spec.evaluation.intervalSteps : 10) == 0"
    ),
)
def export_not_evaluated(job: RLJob, facts: Facts) -> str | None:
    export, every = job.spec.export, job.spec.evaluation.interval_steps
    if export is None or job.spec.dataset.evaluation is None or export.interval_steps % every == 0:
        return None
    return (
        f"exports come every {export.interval_steps} steps, evaluations every {every}: an export without a score is "
        "never the best"
    )


@rule(
    "An answer leaves room for its prompt: maxNewTokens < maxSampleTokens.",
    cel="self.spec.rollout.sampling.maxNewTokens < self.spec.rollout.maxSampleTokens",
)
def answer_over_sample(job: RLJob, facts: Facts) -> str | None:
    answer, sample = job.spec.rollout.sampling.max_new_tokens, job.spec.rollout.max_sample_tokens
    if answer < sample:
        return None
    return f"an answer may have {answer} tokens, but the whole sample only {sample}, prompt included"


@rule("Training samples are drawn: temperature > 0.", cel="self.spec.rollout.sampling.temperature > 0.0")
def temperature_zero(job: RLJob, facts: Facts) -> str | None:
    if job.spec.rollout.sampling.temperature > 0:
        return None
    return (
        f"at temperature 0 the {job.spec.algorithm.group_size} samples of a group are the same: every advantage is 0, "
        "and greedy tokens have no log-probability to correct by"
    )


@warning(
    "Training samples come from the whole distribution: topP = 1 and topK = 0.",
    cel="self.spec.rollout.sampling.topP == 1.0 && self.spec.rollout.sampling.topK == 0",
)
def truncated_sampling(job: RLJob, facts: Facts) -> str | None:
    sampling = job.spec.rollout.sampling
    if sampling.top_p == 1 and sampling.top_k == 0:
        return None
    return (
        f"topP {sampling.top_p:g} and topK {sampling.top_k} cut the distribution that is sampled, the trainer's is "
        "whole: the importance ratio is biased"
    )


@rule(
    "reward.model is given with verifier model, and with no other.",
    cel=("has(self.spec.reward.model) == (has(self.spec.reward.verifier) && self.spec.reward.verifier == 'model')"),
)
def reward_model_path(job: RLJob, facts: Facts) -> str | None:
    reward = job.spec.reward
    if reward.verifier == "model" and reward.model is None:
        return "verifier model scores, and reward.model names none"
    return "reward.model is given, but another verifier scores" if reward.verifier != "model" and reward.model else None


@rule(
    "reward.weights count the parts of a recipe's reward, and no other verifier's; each is a finite number.",
    cel="!has(self.spec.reward.weights) || !has(self.spec.reward.verifier) || self.spec.reward.verifier == 'custom'",
)
def reward_weights(job: RLJob, facts: Facts) -> str | None:
    weights, verifier = job.spec.reward.weights, job.spec.reward.verifier
    if weights is None:
        return None
    if verifier not in (None, "custom"):
        return f"the verifier {verifier} scores by one number"
    odd = [name for name, weight in weights.items() if not math.isfinite(weight)]
    return f"the weight of {odd[0]} is no finite number" if odd else None


@rule(
    "Somebody scores: a built-in verifier, a recipe, an environment, the agent's command, or a teacher alone teaches.",
    cel=(
        "has(self.spec.recipe) || has(self.spec.reward.verifier) || "
        f"self.spec.rollout.workflow == '{ENVIRONMENT}' || "
        f"({TAUGHT_ALONE} && self.spec.rollout.workflow == 'rlvr') || "
        f"(self.spec.rollout.workflow == '{AGENT}' && has(self.spec.rollout.agent) && "
        "has(self.spec.rollout.agent.command))"
    ),
)
def no_reward(job: RLJob, facts: Facts) -> str | None:
    spec = job.spec
    agent, name = spec.rollout.agent, spec.rollout.workflow
    by_itself = name == ENVIRONMENT or (name == AGENT and agent is not None and agent.command)
    if spec.reward.verifier is not None or by_itself:
        return None
    if not needs_scores(spec) and spec.rollout.workflow == "rlvr":
        return None
    if spec.recipe is None:
        return "there is neither a reward.verifier nor a recipe, so no sample would have a reward"
    if facts.recipe_defines_reward is False and spec.rollout.workflow in _BUILT_IN_WORKFLOWS:
        return f"the recipe defines no `reward`, and the workflow {spec.rollout.workflow!r} needs somebody who scores"
    return None


@rule(
    "verifier custom is the recipe's `reward` function.",
    cel="!has(self.spec.reward.verifier) || self.spec.reward.verifier != 'custom' || has(self.spec.recipe)",
)
def custom_without_reward(job: RLJob, facts: Facts) -> str | None:
    if job.spec.reward.verifier != "custom":
        return None
    if job.spec.recipe is None:
        return "verifier custom, but the job has no recipe"
    return "verifier custom, but the recipe defines no `reward`" if facts.recipe_defines_reward is False else None


@rule("A recipe that defines `reward` is the only one who scores.")
def two_rewards(job: RLJob, facts: Facts) -> str | None:
    verifier = job.spec.reward.verifier
    if verifier in (None, "custom") or not facts.recipe_defines_reward:
        return None
    return f"the recipe defines `reward`, and verifier {verifier} is named too: which one scores?"


@rule(
    "The workflow is built in or in the recipe.",
    field="spec.rollout.workflow",
    fix=f"Use {', '.join((*_BUILT_IN_WORKFLOWS, AGENT, ENVIRONMENT))}, or a RolloutWorkflow of the recipe.",
    cel="has(self.spec.recipe) || self.spec.rollout.workflow in ['rlvr', 'multi-turn', 'agent', 'environment']",
)
def workflow(job: RLJob, facts: Facts) -> str | None:
    wanted = job.spec.rollout.workflow
    own = frozenset[str]() if job.spec.recipe is None else facts.recipe_workflows
    by_name = (*_BUILT_IN_WORKFLOWS, AGENT, ENVIRONMENT)
    if wanted in by_name or own is None or wanted in own:
        return None
    return f"there is no workflow {wanted!r}; known are {', '.join([*by_name, *sorted(own)])}"


@rule("A sample fits the model's context.")
def model_context(job: RLJob, facts: Facts) -> str | None:
    context, sample = facts.model_context_tokens, job.spec.rollout.max_sample_tokens
    if context is None or sample <= context:
        return None
    return f"a sample may have {sample} tokens, the model's context is {context}"


@rule_of_every_training("The tokenizer makes no id that the model doesn't have.")
def vocabulary(job: RLJob, facts: Facts) -> str | None:
    tokenizer, model = facts.tokenizer_vocabulary, facts.model_vocabulary
    if tokenizer is None or model is None or tokenizer <= model:
        return None
    return f"the tokenizer has ids up to {tokenizer - 1}, the model's embedding ends at {model - 1}"
