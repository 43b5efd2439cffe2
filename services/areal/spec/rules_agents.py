"""Rules of agents: jobs whose episodes are programs that call the policy over HTTP."""

from __future__ import annotations

from areal.spec.job import RLJob
from areal.spec.rollout import AGENT
from areal.spec.rules import Facts, Severity, rule

_IS_AGENT = f"self.spec.rollout.workflow == '{AGENT}'"


@rule(
    "agent-without-run",
    "spec.rollout.agent",
    "The workflow agent is told which agent of which recipe it runs.",
    fix="Name a class or function of the recipe in rollout.agent.run.",
    cel=f"!({_IS_AGENT}) || (has(self.spec.rollout.agent) && has(self.spec.recipe))",
)
def agent_without_run(job: RLJob, facts: Facts) -> str | None:
    if job.spec.rollout.workflow != AGENT:
        return None
    if job.spec.recipe is None:
        return "the workflow agent runs an agent of the recipe, and the job has no recipe"
    return "the workflow agent has no rollout.agent.run" if job.spec.rollout.agent is None else None


@rule(
    "agent-not-in-recipe",
    "spec.rollout.agent.run",
    "The agent is in the recipe.",
    fix="Name a class of the recipe with `async def run(self, data, *, base_url, api_key, **extra) -> float`.",
    cel=None,
)
def agent_not_in_recipe(job: RLJob, facts: Facts) -> str | None:
    rollout, known = job.spec.rollout, facts.recipe_agents
    if rollout.workflow != AGENT or rollout.agent is None or known is None or rollout.agent.run in known:
        return None
    return f"the recipe has no agent {rollout.agent.run!r}; it has {', '.join(sorted(known)) or 'none'}"


@rule(
    "agent-truncated-sampling",
    "spec.rollout.sampling",
    "Agents sample from the whole distribution: topP is 1 and topK is 0.",
    fix="Remove topP and topK from rollout.sampling, or use another workflow.",
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


@rule(
    "agent-unused",
    "spec.rollout.agent",
    "rollout.agent is for the workflow agent.",
    fix="Set rollout.workflow: agent, or remove rollout.agent.",
    cel=f"!has(self.spec.rollout.agent) || {_IS_AGENT}",
    severity=Severity.WARNING,
)
def agent_unused(job: RLJob, facts: Facts) -> str | None:
    rollout = job.spec.rollout
    if rollout.agent is None or rollout.workflow == AGENT:
        return None
    return f"the workflow {rollout.workflow!r} runs no agent"


RULES = (agent_without_run, agent_not_in_recipe, agent_truncated_sampling, agent_unused)
