"""Workflows of verifiable rewards: one prompt, one answer, one score, or several tries at one prompt."""

from collections.abc import Mapping
from typing import Any

from areal.errors import DataError
from areal.values.generation import GenerationRequest
from areal.values.images import image_of
from areal.workflow.base import Engine, Prompt, RolloutWorkflow
from areal.workflow.episode import Episode, Sequence, Transcript
from areal.workflow.rows.forms import prompt_row
from areal.workflow.rows.rendering import render_chat
from areal.workflow.tokenizer import Tokenizer


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


# ---- From a dataset row to what the model reads


ROW_KWARGS = "chat_template_kwargs"


def prompt_of(row: Mapping[str, Any], tokenizer: Tokenizer, *, chat_template: bool | None = None) -> Prompt:
    """Tokenise a row's prompt, whatever shape it has (`areal.workflow.rows.forms`).

    Messages always go through the chat template; a text does when `chat_template` is true, or None and the tokenizer
    has one. Where the last message is the assistant's, its turn stays open: the model goes on with it. Control strings
    in what is said are encoded as text. Raises DataError for a row without a prompt, for one of which the template
    loses a text, and for arguments of the template that the job doesn't name.
    """
    chat = prompt_row(row, images=tokenizer.image_shape is not None)
    kwargs = row_kwargs(row, tokenizer)
    use_chat = tokenizer.has_chat_template if chat_template is None else chat_template
    if chat.plain and not use_chat:
        text = chat.messages[0]["content"]
        return Prompt(text, tokenizer.encode_plain(text))
    text = render_chat(chat.messages, tokenizer, tools=chat.tools, continues=chat.continues, kwargs=kwargs)
    images = tuple(map(image_of, chat.images))
    return Prompt(str(text), tokenizer.encode_chat(text, images), images)


def row_kwargs(row: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
    """A row's arguments of the chat template, nulls left out. Raises DataError for names that the job doesn't name."""
    given = row.get(ROW_KWARGS)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DataError(f"{ROW_KWARGS} is no object", fix='write {"enable_thinking": false}')
    found = {name: value for name, value in given.items() if value is not None}
    if strange := sorted(set(found) - set(tokenizer.kwargs)):
        raise DataError(
            f"{ROW_KWARGS} sets {', '.join(strange)}, which the job doesn't name",
            fix="name it with its usual value in model.chatTemplateKwargs, or drop the column",
        )
    return found
