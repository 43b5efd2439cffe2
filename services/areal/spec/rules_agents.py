"""Rules of agents, environments and boxes: jobs whose episodes are somebody else's programs."""

from areal.spec.job import RLJob
from areal.spec.rollout import AGENT, ENVIRONMENT
from areal.spec.rules import Facts, rule, warning

_IS_AGENT = f"self.spec.rollout.workflow == '{AGENT}'"


@rule(
    "The workflow agent is told what it runs: an agent of the recipe, or a command.",
    cel=(
        f"!({_IS_AGENT}) || (has(self.spec.rollout.agent) && "
        "has(self.spec.rollout.agent.run) != has(self.spec.rollout.agent.command) && "
        "(has(self.spec.recipe) || has(self.spec.rollout.agent.command)))"
    ),
)
def agent_without_run(job: RLJob, facts: Facts) -> str | None:
    agent = job.spec.rollout.agent
    if job.spec.rollout.workflow != AGENT:
        return None
    if agent is None or (agent.run is None and agent.command is None):
        return "the workflow agent has no rollout.agent.run and no rollout.agent.command"
    if agent.run is not None and agent.command is not None:
        return "rollout.agent has a run and a command"
    if agent.run is not None and job.spec.recipe is None:
        return "rollout.agent.run is an agent of the recipe, and the job has no recipe"
    return None


@rule("The agent is in the recipe.")
def agent_not_in_recipe(job: RLJob, facts: Facts) -> str | None:
    rollout, known = job.spec.rollout, facts.recipe_agents
    run = rollout.agent.run if rollout.agent is not None else None
    if rollout.workflow != AGENT or run is None or known is None or run in known:
        return None
    return f"the recipe has no agent {run!r}; it has {', '.join(sorted(known)) or 'none'}"


@rule("The agent's program is where workers run.")
def agent_command_not_here(job: RLJob, facts: Facts) -> str | None:
    agent = job.spec.rollout.agent
    if job.spec.rollout.workflow != AGENT or facts.agent_program is not False or agent is None or not agent.command:
        return None
    return f"there is no program {agent.command[0]!r} on this machine"


@rule(
    "Agents sample from the whole distribution: topP is 1 and topK is 0.",
    cel=(f"!({_IS_AGENT}) || (self.spec.rollout.sampling.topP == 1.0 && self.spec.rollout.sampling.topK == 0)"),
)
def agent_truncated_sampling(job: RLJob, facts: Facts) -> str | None:
    sampling = job.spec.rollout.sampling
    if job.spec.rollout.workflow != AGENT or (sampling.top_p == 1 and sampling.top_k == 0):
        return None
    return (
        f"with topP {sampling.top_p:g} and topK {sampling.top_k} the log-probabilities that an agent is given are not "
        "those of what was sampled"
    )


@warning("rollout.agent is for the workflow agent.", cel=f"!has(self.spec.rollout.agent) || {_IS_AGENT}")
def agent_unused(job: RLJob, facts: Facts) -> str | None:
    rollout = job.spec.rollout
    if rollout.agent is None or rollout.workflow == AGENT:
        return None
    return f"the workflow {rollout.workflow!r} runs no agent"


@rule(
    "rollout.agent.python runs an agent of the recipe.",
    cel="!has(self.spec.rollout.agent) || !has(self.spec.rollout.agent.python) || has(self.spec.rollout.agent.run)",
)
def agent_command_with_python(job: RLJob, facts: Facts) -> str | None:
    agent = job.spec.rollout.agent
    if agent is None or agent.python is None or agent.run is not None:
        return None
    return "rollout.agent.python is given, and no rollout.agent.run that it would run"


@rule(
    "The workflow environment is told what it plays, and nothing else is.",
    cel=f"(self.spec.rollout.workflow == '{ENVIRONMENT}') == has(self.spec.rollout.environment)",
)
def environment_without_name(job: RLJob, facts: Facts) -> str | None:
    rollout = job.spec.rollout
    if (rollout.workflow == ENVIRONMENT) == (rollout.environment is not None):
        return None
    if rollout.environment is None:
        return "the workflow environment has no rollout.environment"
    return f"the workflow {rollout.workflow!r} plays no environment"


@rule("The Python of an agent or an environment is where workers run.")
def python_not_here(job: RLJob, facts: Facts) -> str | None:
    if facts.own_python is not False:
        return None
    return f"there is no interpreter {job.spec.rollout.own_python!r} on this machine"


@warning("Each sample under way can have a box: boxes.maxConcurrent ≥ maxConcurrentRollouts × groupSize.")
def boxes_few(job: RLJob, facts: Facts) -> str | None:
    rollout, group = job.spec.rollout, job.spec.algorithm.group_size
    samples, boxes = rollout.max_concurrent_rollouts * group, rollout.boxes.max_concurrent
    if not boxes or boxes >= samples:
        return None
    return f"{samples} samples are under way at once, and {boxes} boxes: the others wait for room"
