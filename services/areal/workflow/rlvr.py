"""Workflows of verifiable rewards: one prompt, one answer, one score, or several tries at one prompt."""

from typing import Any

from areal.values.generation import GenerationRequest
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.episode import Episode, Sequence, Transcript


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


# ---- Several tries at one prompt: after a wrong answer the model reads feedback and tries again
# Token-exact: the input of turn k+1 is every id so far, as sampled, followed by the ids of the feedback. Nothing is
# decoded and encoded again, so what is trained is what was sampled.


class MultiTurnWorkflow(RolloutWorkflow):
    """Retry with feedback until the reward is positive or `max_turns` answers were given.

    The reward is multiplied by `turn_discount` for each turn before the last one. A recipe changes the three attributes
    by deriving from this class.
    """

    name = "multi-turn"
    feedback = "Your answer is either wrong or not parsable. Please try to answer again."
    turn_discount = 0.9
    default_max_turns = 3

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One sequence: prompt, answer, feedback, answer, …"""
        prompt = engine.prompt(row)
        transcript = Transcript(prompt.ids)
        discount = 1.0
        turn = 1
        while True:
            before = transcript.ids
            result = await engine.agenerate(GenerationRequest(before))
            transcript.sampled(result)
            reward = await engine.score(
                prompt=prompt.text,
                completion=engine.tokenizer.decode(result.output_ids),
                prompt_ids=before,
                completion_ids=result.output_ids,
                row=row,
            )
            no_room = not len(result.output_ids)  # the sample's token budget is used up
            if reward > 0 or turn >= (self.max_turns or self.default_max_turns) or no_room:
                return Episode([transcript.sequence(reward * discount)])
            ended = int(result.output_ids[-1]) == engine.tokenizer.turns.end  # a stop string ends an answer without it
            transcript.given(engine.tokenizer.encode_turn(self.feedback, after_end=ended))
            discount *= self.turn_discount
            turn += 1
