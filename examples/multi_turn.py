"""A workflow of its own: after a wrong answer the model is told so and asked again.

    areal run examples/multi_turn.yaml

Needs the quickstart's data and model (`make quickstart` makes both). The feedback is a line end and the question once
more, which this little model can read. Tokens are never decoded and encoded again: each turn goes on from the very ids
that were sampled, and only those are trained. `MultiTurnWorkflow` does this for chat models with a message as feedback.
"""

from areal.workflow import Episode, GenerationRequest, RolloutWorkflow, Transcript

SECOND_TRY = 0.5  # a right second answer earns half of what a right first one does


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """1.0 for the sorted digits."""
    return float(completions.strip() == answer)


class RetryWorkflow(RolloutWorkflow):
    """Two tries at each question, in one token sequence."""

    name = "retry"

    async def arun_episode(self, engine, row):
        """Called once for each sample of a group, many at once."""
        prompt = engine.prompt(row)
        again = engine.tokenizer.encode("\n" + prompt.text)
        transcript = Transcript(prompt.ids)
        for worth in (1.0, SECOND_TRY):
            asked = transcript.ids
            result = await engine.agenerate(GenerationRequest(asked))
            transcript.sampled(result)
            score = await engine.score(
                prompt=prompt.text,
                completion=engine.tokenizer.decode(result.output_ids),
                prompt_ids=asked,
                completion_ids=result.output_ids,
                row=row,
            )
            if score > 0 or worth == SECOND_TRY:
                break
            transcript.given(again)
        return Episode([transcript.sequence(score * worth)])
