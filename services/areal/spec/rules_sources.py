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
    "metadata.name",
    f"metadata.name is a DNS label (RFC 1035) of at most {_LONGEST_NAME} characters.",
    fix="Use lower-case letters, digits and '-', beginning with a letter, for example digits-2.",
    cel=f"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= {_LONGEST_NAME}",
)
def name(job: RLJob, facts: Facts) -> str | None:
    given = job.metadata.name
    if len(given) > _LONGEST_NAME:
        return f"{given!r} has {len(given)} characters; pods add their own to at most {_LONGEST_NAME}"
    return None if _NAME.fullmatch(given) else f"{given!r} can't be the name of pods and directories"


@rule_of_every_training(
    "spec.model",
    "Exactly one of model.path and model.uri is given.",
    fix="Keep model.path for a directory on this machine, or model.uri for a cluster's volume or the Hugging Face hub.",
    cel="has(self.spec.model.path) != has(self.spec.model.uri)",
)
def model_source(job: RLJob, facts: Facts) -> str | None:
    model = job.spec.model
    if (model.path is None) != (model.uri is None):
        return None
    return "neither path nor uri is given" if model.path is None else "both path and uri are given"


@rule_of_every_training(
    "spec.evaluation",
    "Evaluation is configured only where there are held-out rows.",
    fix="Add dataset.evaluation, or remove the evaluation block.",
    cel="!has(self.spec.evaluation) || has(self.spec.dataset.evaluation)",
)
def evaluation_without_dataset(job: RLJob, facts: Facts) -> str | None:
    if "evaluation" not in job.spec.model_fields_set or job.spec.dataset.evaluation is not None:
        return None
    return (
        f"an evaluation every {job.spec.evaluation.interval_steps} steps was asked, but there is no dataset.evaluation"
    )


@warning(
    "spec.evaluation.intervalSteps",
    "The model is evaluated before the end: evaluation.intervalSteps ≤ maxSteps.",
    fix="Lower evaluation.intervalSteps.",
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
    "spec.evaluation.passAt",
    "pass@k needs k samples: every k of evaluation.passAt is between 1 and evaluation.samples.",
    fix="Raise evaluation.samples, or lower the k.",
    cel=(
        "!has(self.spec.evaluation) || !has(self.spec.evaluation.passAt) || "
        "self.spec.evaluation.passAt.all(k, k >= 1 && k <= self.spec.evaluation.samples)"
    ),
)
def pass_at(job: RLJob, facts: Facts) -> str | None:
    evaluation = job.spec.evaluation
    wrong = [k for k in evaluation.pass_at if not 1 <= k <= evaluation.samples]
    return f"pass@{wrong[0]} of {evaluation.samples} samples means nothing" if wrong else None


@rule(
    "spec.export.metric",
    "The best export is the best by a figure that evaluations have: mean, avg@n or pass@k, of all rows or of SET/.",
    fix="Set export.metric to one of them, and evaluation.samples and passAt so that there is such a figure.",
)
def export_metric(job: RLJob, facts: Facts) -> str | None:
    export, evaluation = job.spec.export, job.spec.evaluation
    if export is None or export.metric.rpartition("/")[2] in evaluation.figures:
        return None
    return f"there is no {export.metric!r}; an evaluation of this job has {', '.join(evaluation.figures)}"


@warning(
    "spec.export.intervalSteps",
    "Each export is evaluated: export.intervalSteps is a multiple of evaluation.intervalSteps.",
    fix="Set export.intervalSteps to a multiple of evaluation.intervalSteps; the job runs either way.",
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
    "spec.rollout.sampling.maxNewTokens",
    "An answer leaves room for its prompt: maxNewTokens < maxSampleTokens.",
    fix="Raise rollout.maxSampleTokens (prompt and all turns), or lower rollout.sampling.maxNewTokens.",
    cel="self.spec.rollout.sampling.maxNewTokens < self.spec.rollout.maxSampleTokens",
)
def answer_over_sample(job: RLJob, facts: Facts) -> str | None:
    answer, sample = job.spec.rollout.sampling.max_new_tokens, job.spec.rollout.max_sample_tokens
    if answer < sample:
        return None
    return f"an answer may have {answer} tokens, but the whole sample only {sample}, prompt included"


@rule(
    "spec.rollout.sampling.temperature",
    "Training samples are drawn: temperature > 0.",
    fix="Set rollout.sampling.temperature: 1.0; evaluation is greedy anyway.",
    cel="self.spec.rollout.sampling.temperature > 0.0",
)
def temperature_zero(job: RLJob, facts: Facts) -> str | None:
    if job.spec.rollout.sampling.temperature > 0:
        return None
    return (
        f"at temperature 0 the {job.spec.algorithm.group_size} samples of a group are the same: every advantage is 0, "
        "and greedy tokens have no log-probability to correct by"
    )


@warning(
    "spec.rollout.sampling.topP",
    "Training samples come from the whole distribution: topP = 1 and topK = 0.",
    fix="Leave topP and topK out for training.",
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
    "spec.reward.model",
    "reward.model is given with verifier model, and with no other.",
    fix="Set reward.verifier: model and name its directory in reward.model.path, or remove reward.model.",
    cel=("has(self.spec.reward.model) == (has(self.spec.reward.verifier) && self.spec.reward.verifier == 'model')"),
)
def reward_model_path(job: RLJob, facts: Facts) -> str | None:
    reward = job.spec.reward
    if reward.verifier == "model" and reward.model is None:
        return "verifier model scores, and reward.model names none"
    return "reward.model is given, but another verifier scores" if reward.verifier != "model" and reward.model else None


@rule(
    "spec.reward.weights",
    "reward.weights count the parts of a recipe's reward, and no other verifier's; each is a finite number.",
    fix="Remove reward.weights, or let the recipe's `reward` return a dict and name verifier custom or none.",
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
    "spec.reward.verifier",
    "Somebody scores: a built-in verifier, a recipe, an environment, the agent's command, or a teacher alone teaches.",
    fix="Set reward.verifier: exact, math, code or model, or name a recipe with a `reward` function.",
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
    "spec.reward.verifier",
    "verifier custom is the recipe's `reward` function.",
    fix="Define `reward(prompt, completions, prompt_ids, completion_ids, **row)` there, or name another verifier.",
    cel="!has(self.spec.reward.verifier) || self.spec.reward.verifier != 'custom' || has(self.spec.recipe)",
)
def custom_without_reward(job: RLJob, facts: Facts) -> str | None:
    if job.spec.reward.verifier != "custom":
        return None
    if job.spec.recipe is None:
        return "verifier custom, but the job has no recipe"
    return "verifier custom, but the recipe defines no `reward`" if facts.recipe_defines_reward is False else None


@rule(
    "spec.reward.verifier",
    "A recipe that defines `reward` is the only one who scores.",
    fix="Remove reward.verifier to use the recipe's function, or remove the function.",
)
def two_rewards(job: RLJob, facts: Facts) -> str | None:
    verifier = job.spec.reward.verifier
    if verifier in (None, "custom") or not facts.recipe_defines_reward:
        return None
    return f"the recipe defines `reward`, and verifier {verifier} is named too: which one scores?"


@rule(
    "spec.rollout.workflow",
    "The workflow is built in or in the recipe.",
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


@rule(
    "spec.rollout.maxSampleTokens",
    "A sample fits the model's context.",
    fix="Lower rollout.maxSampleTokens, or use a model with a longer context.",
)
def model_context(job: RLJob, facts: Facts) -> str | None:
    context, sample = facts.model_context_tokens, job.spec.rollout.max_sample_tokens
    if context is None or sample <= context:
        return None
    return f"a sample may have {sample} tokens, the model's context is {context}"


@rule_of_every_training(
    "spec.model.tokenizer",
    "The tokenizer makes no id that the model doesn't have.",
    fix="Use the tokenizer that belongs to the model.",
)
def vocabulary(job: RLJob, facts: Facts) -> str | None:
    tokenizer, model = facts.tokenizer_vocabulary, facts.model_vocabulary
    if tokenizer is None or model is None or tokenizer <= model:
        return None
    return f"the tokenizer has ids up to {tokenizer - 1}, the model's embedding ends at {model - 1}"
