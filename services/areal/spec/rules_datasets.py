"""Rules of datasets: their sources, their columns and what fits."""

from areal.spec.job import RLJob
from areal.spec.rules import Facts, Severity, rule, rule_of_every_training, warning
from areal.spec.sources import DatasetSource


def _sources(source: DatasetSource) -> str | None:
    if len(source.given) == 1:
        return None
    return f"{' and '.join(source.given)} are given, one is allowed" if source.given else "no source is given"


_KINDS_CEL = "has({0}.jsonl), has({0}.huggingFace), has({0}.reasoningGym), has({0}.recipe)"
_ONE_SOURCE_CEL = f"[{_KINDS_CEL}].filter(x, x).size() == 1"
_SEVERAL_CEL = "has({0}.sources) && size({0}.sources) > 0"
_TRAIN = "self.spec.dataset.train"
_LEAST_SHARE = 4096  # places of the longest cycle of sources


@rule_of_every_training(
    "dataset.train has exactly one of jsonl, huggingFace, reasoningGym, recipe and sources.",
    cel=f"[{_KINDS_CEL.format(_TRAIN)}, {_SEVERAL_CEL.format(_TRAIN)}].filter(x, x).size() == 1",
)
def train_source(job: RLJob, facts: Facts) -> str | None:
    return _sources(job.spec.dataset.train)


@rule_of_every_training(
    "Each of several sources has exactly one of jsonl, huggingFace, reasoningGym and recipe.",
    cel=f"!has({_TRAIN}.sources) || {_TRAIN}.sources.all(s, {_ONE_SOURCE_CEL.format('s')})",
)
def each_source(job: RLJob, facts: Facts) -> str | None:
    told = ((place, _sources(source)) for place, source in enumerate(job.spec.dataset.train.sources))
    return next((f"source {place}: {said}" for place, said in told if said), None)


@rule_of_every_training(
    f"No source has a share of less than 1/{_LEAST_SHARE} of the prompts.",
    cel=(
        f"!has({_TRAIN}.sources) || {_TRAIN}.sources.all(s, "
        f"s.weight * {_LEAST_SHARE}.0 >= {_TRAIN}.sources.map(t, t.weight).sum())"
    ),
)
def source_share(job: RLJob, facts: Facts) -> str | None:
    weights = [source.weight for source in job.spec.dataset.train.sources]
    rare = next((place for place, weight in enumerate(weights) if weight * _LEAST_SHARE < sum(weights)), None)
    return None if rare is None else f"source {rare} has {weights[rare]:g} of {sum(weights):g}"


@rule_of_every_training(
    "dataset.evaluation has exactly one of jsonl, huggingFace, reasoningGym and recipe.",
    cel="!has(self.spec.dataset.evaluation) || " + _ONE_SOURCE_CEL.format("self.spec.dataset.evaluation"),
)
def evaluation_source(job: RLJob, facts: Facts) -> str | None:
    return _sources(job.spec.dataset.evaluation) if job.spec.dataset.evaluation else None


@rule_of_every_training(
    "A dataset of the recipe needs a recipe.",
    cel=(
        "has(self.spec.recipe) || (!has(self.spec.dataset.train.recipe) && "
        f"(!has({_TRAIN}.sources) || !{_TRAIN}.sources.exists(s, has(s.recipe))) && "
        "(!has(self.spec.dataset.evaluation) || !has(self.spec.dataset.evaluation.recipe)))"
    ),
)
def recipe_dataset_without_recipe(job: RLJob, facts: Facts) -> str | None:
    named = job.spec.dataset.named.items()
    asked = [field.removeprefix("spec.") for field, source in named if source.recipe is not None]
    if not asked or job.spec.recipe is not None:
        return None
    return f"{' and '.join(asked)} asks for the recipe's rows, but the job has no recipe"


@rule("Rows have the column of the expected answer, for verifiers exact and math.")
def answer_column(job: RLJob, facts: Facts) -> str | None:
    reward, columns = job.spec.reward, facts.train_columns
    if reward.verifier not in ("exact", "math") or columns is None:
        return None
    if reward.answer_field in columns or reward.answer_field.partition(".")[0] in columns:
        return None  # of a path into a nested column, reading the rows tells the rest
    return (
        f"verifier {reward.verifier} needs the column {reward.answer_field!r}; rows have {', '.join(sorted(columns))}"
    )


@warning("A batch has different prompts: the dataset has at least batchSize rows.")
def dataset_smaller_than_batch(job: RLJob, facts: Facts) -> str | None:
    rows, batch = facts.train_rows, job.spec.algorithm.batch_size
    if rows is None or rows >= batch:
        return None
    return f"{rows} rows for batches of {batch} groups: prompts repeat within a step"


@rule_of_every_training("There are as many held-out rows as are asked for.", severity=Severity.WARNING)
def evaluation_rows(job: RLJob, facts: Facts) -> str | None:
    wanted, there = job.spec.evaluation.rows, facts.evaluation_rows
    if wanted is None or there is None or wanted <= there:
        return None
    return f"{wanted} rows were asked for, the dataset has {there}: all of them are used"


@rule("The longest prompt leaves room for an answer.")
def prompt_too_long(job: RLJob, facts: Facts) -> str | None:
    longest, rollout = facts.longest_prompt_tokens, job.spec.rollout
    if job.spec.dataset.long_prompts == "drop":
        return None
    if longest is None or longest + rollout.sampling.max_new_tokens <= rollout.max_sample_tokens:
        return None
    needed = longest + rollout.sampling.max_new_tokens
    place = f", {facts.longest_prompt_place}," if facts.longest_prompt_place else ""
    more = f"; {facts.prompts_too_long} rows are too long" if facts.prompts_too_long > 1 else ""
    return (
        f"the longest prompt{place} has {longest} tokens, with an answer of {rollout.sampling.max_new_tokens} that "
        f"makes {needed}, more than maxSampleTokens {rollout.max_sample_tokens}{more}"
    )


@rule_of_every_training(
    "Only RL with the workflow rlvr or multi-turn drops long prompts.",
    cel=(
        "!has(self.spec.dataset.longPrompts) || self.spec.dataset.longPrompts == 'refuse' || "
        "!has(self.spec.training) && (!has(self.spec.rollout) || !has(self.spec.rollout.workflow) || "
        "self.spec.rollout.workflow in ['rlvr', 'multi-turn'])"
    ),
)
def long_prompts(job: RLJob, facts: Facts) -> str | None:
    spec = job.spec
    if spec.dataset.long_prompts == "refuse" or (spec.is_rl and spec.rollout.workflow in ("rlvr", "multi-turn")):
        return None
    return "nothing here knows how long a prompt may be, so none can be dropped"


@rule_of_every_training(
    "Pools have rewards to go by: they are RL's, and the easy begin above the hard.",
    cel=(
        "!has(self.spec.dataset.pools) || !has(self.spec.training) && (!has(self.spec.dataset.pools.hardUpTo) || "
        "self.spec.dataset.pools.hardUpTo < self.spec.dataset.pools.easyFrom)"
    ),
)
def pools_of_rl(job: RLJob, facts: Facts) -> str | None:
    pools = job.spec.dataset.pools
    if pools is None:
        return None
    if not job.spec.is_rl:
        return "a training on fixed rows has no rewards"
    if pools.hard_up_to is None or pools.hard_up_to < pools.easy_from:
        return None
    return f"rows are easy from {pools.easy_from:g} and hard up to {pools.hard_up_to:g}: some would be both"


@rule_of_every_training(
    "Only rows that the verifier math or code could never use are dropped for that.",
    cel=(
        "!has(self.spec.dataset.badRows) || self.spec.dataset.badRows == 'refuse' || "
        "has(self.spec.reward) && has(self.spec.reward.verifier) && self.spec.reward.verifier in ['math', 'code']"
    ),
)
def bad_rows(job: RLJob, facts: Facts) -> str | None:
    spec = job.spec
    if spec.dataset.bad_rows == "refuse" or (spec.is_rl and spec.reward.verifier in ("math", "code")):
        return None
    return "nothing here says which rows can't be used, so none can be dropped"


@rule(
    "Only the verifier math knows roundings.",
    cel=(
        "!has(self.spec.reward) || !has(self.spec.reward.goldRounds) || !self.spec.reward.goldRounds || "
        "has(self.spec.reward.verifier) && self.spec.reward.verifier == 'math'"
    ),
)
def gold_rounds(job: RLJob, facts: Facts) -> str | None:
    if not job.spec.reward.gold_rounds or job.spec.reward.verifier == "math":
        return None
    return "another verifier scores, which compares no decimals"
