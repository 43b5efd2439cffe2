"""Reinforcement learning with verifiable rewards: one prompt, one answer, one score."""

from typing import Any

from areal.values.generation import GenerationRequest
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.episode import Episode, Sequence


class RLVRWorkflow(RolloutWorkflow):
    """Answer the row's prompt once and score the answer."""

    name = "rlvr"

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One sequence: prompt and answer."""
        prompt = engine.prompt(row)
        result = await engine.agenerate(GenerationRequest(prompt.ids))
        reward = await engine.score(
            prompt=prompt.text,
            completion=engine.tokenizer.decode(result.output_ids),
            prompt_ids=prompt.ids,
            completion_ids=result.output_ids,
            row=row,
        )
        return Episode([Sequence.of(prompt.ids, result, reward)])
