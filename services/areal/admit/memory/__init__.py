"""Memory plan of a job: bytes a GPU and a disk need, by closed forms over the model's config.json, without torch."""

from areal.admit.memory.budget import Line, ServerPlan, TrainerPlan, plan_server, plan_trainer, tokens_in
from areal.admit.memory.shape import ModelShape, shape_of

__all__ = [
    "Line",
    "ModelShape",
    "ServerPlan",
    "TrainerPlan",
    "plan_server",
    "plan_trainer",
    "shape_of",
    "tokens_in",
]
