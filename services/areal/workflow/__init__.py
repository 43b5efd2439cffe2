"""The recipe API: workflows, episodes, generation requests. Imports quickly, and never torch."""

from areal.values.generation import GenerationRequest, GenerationResult, Sampling, TokenSpan
from areal.workflow.base import Engine, Prompt, RolloutWorkflow
from areal.workflow.command import CommandAgent
from areal.workflow.environment import EnvironmentWorkflow
from areal.workflow.episode import Episode, Sequence, Transcript
from areal.workflow.rlvr import MultiTurnWorkflow, RLVRWorkflow

__all__ = [
    "CommandAgent", "Engine", "EnvironmentWorkflow", "Episode", "GenerationRequest", "GenerationResult",
    "MultiTurnWorkflow", "Prompt", "RLVRWorkflow", "RolloutWorkflow", "Sampling", "Sequence", "TokenSpan", "Transcript",
]  # fmt: skip
