"""Workflows by name: the built-in ones, and those of the job's recipe."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from areal.errors import ConfigError
from areal.workflow.agent import AgentWorkflow
from areal.workflow.base import RolloutWorkflow
from areal.workflow.hosted import HostedWorkflow
from areal.workflow.multi_turn import MultiTurnWorkflow
from areal.workflow.rlvr import RLVRWorkflow

BUILT_IN: dict[str, type[RolloutWorkflow]] = {
    RLVRWorkflow.name: RLVRWorkflow,
    MultiTurnWorkflow.name: MultiTurnWorkflow,
    AgentWorkflow.name: AgentWorkflow,
    HostedWorkflow.name: HostedWorkflow,
}


def find_workflow(
    name: str, recipe_workflows: Mapping[str, type[RolloutWorkflow]] | None = None
) -> type[RolloutWorkflow]:
    """The workflow class called `name`; a recipe's own comes before a built-in one. Raises ConfigError."""
    known = {**BUILT_IN, **(recipe_workflows or {})}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    raise ConfigError(
        f"rollout.workflow {name!r} is unknown; known: {', '.join(sorted(known))}",
        fix=f"did you mean {near[0]!r}?" if near else "derive a class from RolloutWorkflow in the recipe and name it",
    )
