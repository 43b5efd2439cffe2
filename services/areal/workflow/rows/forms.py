"""Forms of dataset rows: which shape a row has, and its chat or pair in the normal form.

Owns the order in which shapes are recognised (the first that fits is the row's form) and the refusal of those that no
training here uses. One reader for RL prompts, SFT, preference pairs, distillation and evaluation. Pure.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from areal.errors import DataError
from areal.values.images import MARK
from areal.workflow.rows.messages import Message, MessageList, ToolSchema, message_list, tools_in

TEXT_PROMPTS = ("prompt", "question", "problem", "query")
_CHATS = ("messages", "conversations", "conversation", "contents")
_ANSWERS = ("answer", "response", "output", "solution", "completion")
_IMAGE_COLUMNS = ("images", "image")
_MEDIA_COLUMNS = (*_IMAGE_COLUMNS, "video", "videos", "audio", "audios")
_IMAGE_WORD = "<image>"  # where an image stands in a text, as most datasets write it
_SYSTEMS = ("system", "system_prompt")
PROMPT_COLUMNS = ("messages", *TEXT_PROMPTS, *_CHATS[1:], "instruction", "input")
"""Any of these can be a row's prompt."""
_PYTHON_CHAT = re.compile(r"\s*\[\s*\{\s*'(role|content|from|value)'\s*:")
_HUMAN_MARK = re.compile(r"\n\n(Human|Assistant):")


class RowForm(Enum):
    """How a row tells its chat; the value names it in messages."""

    CHAT = "OpenAI's messages"
    PROMPT_COMPLETION = "TRL's prompt and completion"
    INSTRUCTION = "Alpaca's instruction"
    TEXT = "a text prompt"
    PAIR = "chosen and rejected"


@dataclass(frozen=True)
class ChatRow:
    """A chat in the normal form.

    `continues`: the last message is the assistant's and begun, to be gone on with. `trained`: the assistant's turns
    that a loss counts, as places in `messages`; none for a prompt. `plain`: the row told texts, not messages, so a
    model without a chat template can read them as they are.
    """

    form: RowForm
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    plain: bool = False
    continues: bool = False
    trained: tuple[int, ...] = ()
    images: tuple[Any, ...] = ()  # that the marks in texts stand for, as the row tells them


@dataclass(frozen=True)
class PairRow:
    """A preference pair in the normal form: what both sides answer, and the two answers."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    plain: bool = False
    images: tuple[Any, ...] = ()  # of what comes before


def column_of(row: Mapping[str, Any], path: str) -> Any:
    """A row's value by a column's name, or by a dotted path: `reward_model.ground_truth`. Else None."""
    if path in row:
        return row[path]
    value: Any = row
    for name in path.split("."):
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = _json_or_text(value)
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def answer_text(value: Any) -> str | None:
    """An expected answer as text: 18 and 18.0 are "18" (a null in the column made it float); None stays None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def form_name(row: Mapping[str, Any]) -> str | None:
    """What a row's shape is called; None for a row that has none."""
    form = _form_of(row)
    if form is not RowForm.CHAT:
        return None if form is None else form.value
    listed = _json_or_text(row[_chat_column(row)])
    first = listed[0] if isinstance(listed, list | tuple) and listed else None
    keys = first if isinstance(first, Mapping) else {}
    return "ShareGPT" if "from" in keys else "Gemini's contents" if "parts" in keys else RowForm.CHAT.value


def prompt_row(row: Mapping[str, Any], *, images: bool = False) -> ChatRow:
    """The chat that a row asks a model to go on with; `images` says whether the model reads some.

    Raises DataError with the column, the place in it and what to change.
    """
    form = _form_of(row)
    if form is RowForm.PAIR:
        if not any(row.get(name) is not None for name in PROMPT_COLUMNS):
            pair = pair_row(row)
            return ChatRow(form, pair.prompt, pair.tools)
        row = {name: value for name, value in row.items() if name not in ("chosen", "rejected")}
        form = _form_of(row)
    if form is None:
        raise _no_prompt(row)
    listed = _messages_before(row, form, images=images)
    messages = tuple(listed.messages)
    if form is RowForm.TEXT:
        _refuse_unshown_choices(row, messages[-1]["content"])
    begun = messages[-1]["role"] == "assistant"
    if begun and messages[-1].get("tool_calls"):
        raise DataError("the prompt ends with a call that has no result", fix="give the result, or drop the call")
    plain = _is_plain(messages, 1, listed) and not listed.images
    return ChatRow(form, messages, tuple(listed.tools), plain=plain, continues=begun, images=listed.images)


def answer_row(row: Mapping[str, Any], answer_field: str = "answer", *, images: bool = False) -> ChatRow:
    """The chat of a row that ends with an assistant's turn, and which turns are trained.

    `images` says whether the model reads some. Raises DataError as `prompt_row` does, and for a turn that says nothing.
    """
    _refuse_unused(row)
    form = _form_of(row)
    if form is RowForm.PAIR:
        raise DataError("a row has chosen and rejected: it is a pair", fix="train it with DPO or a reward model")
    if form is None:
        raise _no_prompt(row)
    listed = _messages_before(row, form, images=images)
    own_answer = form is RowForm.CHAT and listed.messages[-1]["role"] == "assistant"
    if own_answer:
        found = ChatRow(form, tuple(listed.messages), tuple(listed.tools), trained=_assistants(listed))
    else:
        answer = _answer_in(row, form, answer_field)
        behind = frozenset(place + len(listed.messages) for place in answer.muted)
        whole = MessageList([*listed.messages, *answer.messages], listed.tools, listed.muted | behind)
        first = len(listed.messages) if form is RowForm.PROMPT_COMPLETION else 0
        trained = tuple(place for place in _assistants(whole) if place >= first)
        plain = form is not RowForm.CHAT and _is_plain(whole.messages, 2, whole) and not listed.images
        found = ChatRow(form, tuple(whole.messages), tuple(whole.tools), plain, trained=trained)
    if found.messages[-1]["role"] != "assistant":
        raise DataError("the last message isn't the assistant's", fix="end the row with the answer to learn")
    for place in found.trained:
        _refuse_unsaid(found.messages[place], f"message {place}")
    if not found.trained:
        raise DataError("no turn of the row is trained (weight 0, train: false)", fix="leave such rows out")
    return replace(found, images=listed.images)


def pair_row(row: Mapping[str, Any], *, images: bool = False) -> PairRow:
    """The pair that a row holds: what comes before, and both answers.

    `images` says whether the model reads some. Raises DataError as `prompt_row` does, for equal and for empty sides.
    """
    _refuse_unused(row)
    _refuse_media(row, images=images)
    if (lacking := next((side for side in ("chosen", "rejected") if row.get(side) is None), None)) is not None:
        raise DataError(
            f"a row's column {lacking!r} is missing; it has {_names(row)}", fix="give prompt, chosen and rejected"
        )
    tools = _tools_of(row)
    sides = [_side(row[name], name, tools, images=images) for name in ("chosen", "rejected")]
    chosen, rejected = (side.messages for side in sides)
    asked = _prompt_of_pair(row, tools, images=images)
    before = [] if asked is None else asked.messages
    if asked is None:
        common = 0
        while common < min(len(chosen), len(rejected)) - 1 and chosen[common] == rejected[common]:
            common += 1
        before = chosen[:common]
        if not before:
            raise DataError("a pair has no prompt", fix="name the prompt's column `prompt`")
        asked = sides[0]
    answers = []
    for side, messages in (("chosen", chosen), ("rejected", rejected)):
        rest = _behind(messages, before, side)
        if not rest or rest[-1]["role"] != "assistant":
            raise DataError(f"column {side} doesn't end with an assistant's message", fix="end it with the answer")
        _refuse_unsaid(rest[-1], f"column {side}")
        answers.append(tuple(rest))
    if answers[0] == answers[1]:
        raise DataError("chosen and rejected are the same", fix="drop such pairs: they teach nothing")
    whole = before if before[0]["role"] == "system" else [*_system_of(row), *before]
    texts = all(
        isinstance(row[side], str) and not row[side].startswith("\n\nHuman:") for side in ("chosen", "rejected")
    )
    plain = texts and len(whole) == 1 and isinstance(row.get("prompt", row.get("question")), str)
    shown = MessageList(whole, tools, frozenset(), asked.images)
    shown = _with_column(shown, row) if images else shown
    plain = plain and not tools and not shown.images
    return PairRow(tuple(shown.messages), answers[0], answers[1], tuple(tools), plain, shown.images)


def _form_of(row: Mapping[str, Any]) -> RowForm | None:
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return RowForm.PAIR
    if row.get("completion") is not None and row.get("prompt") is not None:
        return RowForm.PROMPT_COMPLETION
    if any(row.get(name) is not None for name in _CHATS) or _is_chat(row.get("input")):
        return RowForm.CHAT
    if _is_chat(row.get("prompt")):
        return RowForm.CHAT
    if isinstance(row.get("instruction"), str) and not isinstance(row.get("prompt"), str):
        return RowForm.INSTRUCTION
    return RowForm.TEXT if any(row.get(name) is not None for name in TEXT_PROMPTS) else None


def _messages_before(row: Mapping[str, Any], form: RowForm, *, images: bool = False) -> MessageList:
    """The messages of a row without the answer that a column of its own holds."""
    _refuse_media(row, images=images)
    tools = _tools_of(row)
    if form is RowForm.CHAT:
        name = _chat_column(row)
        listed = message_list(_json_or_text(row[name]), name, tools, images=images)
    elif form is RowForm.INSTRUCTION:
        listed = MessageList(_instructed(row), tools, frozenset())
    else:
        name = next((name for name in TEXT_PROMPTS if row.get(name) is not None), "prompt")
        value = _json_or_text(row[name]) if _is_chat(row[name]) else row[name]
        if isinstance(value, str):
            listed = MessageList(_asked(value), tools, frozenset())
        else:
            listed = message_list(value, name, tools, images=images)
    listed = _with_column(listed, row) if images else listed
    if not any(said for message in listed.messages for name, said in message.items() if name != "role"):
        raise DataError("the prompt is empty", fix="drop the row, or give it a prompt")
    system = _system_of(row)
    if system and listed.messages[0]["role"] != "system":
        muted = frozenset(place + 1 for place in listed.muted)
        return replace(listed, messages=[*system, *listed.messages], muted=muted)
    if system and listed.messages[0] != system[0]:
        raise DataError("the row has two system messages: a column and the chat's first", fix="drop one of them")
    return listed


def _with_column(listed: MessageList, row: Mapping[str, Any]) -> MessageList:
    """With the images of the row's own column, where marks, `<image>` in texts or nothing says where they stand."""
    given: Any = next((row[name] for name in _IMAGE_COLUMNS if row.get(name)), [])
    column = list(given) if isinstance(given, list | tuple) else [given]
    messages, found = [dict(message) for message in listed.messages], list(listed.images)
    if column and not found:
        asked = [message for message in messages if message["role"] == "user"]
        written = sum(message["content"].count(_IMAGE_WORD) for message in asked)
        if written == len(column):
            for message in asked:
                message["content"] = message["content"].replace(_IMAGE_WORD, MARK)
        elif not written and asked:
            asked[0]["content"] = MARK * len(column) + asked[0]["content"]
        found = [None] * len(column) if written in (0, len(column)) else []
        if not found:
            raise DataError(
                f"the prompt has {written} times <image> for {len(column)} images", fix="write one for each"
            )
    untold = found.count(None)
    if column and untold != len(column):
        words = f"{untold} parts of the prompt are images of the column, which has {len(column)}"
        raise DataError(words, fix='write one part {"type": "image"} for each')
    if untold and not column:
        raise DataError("a part is an image, and the row has none", fix="give a column images, or the part its image")
    rest = iter(column)
    return replace(listed, messages=messages, images=tuple(next(rest) if one is None else one for one in found))


def _asked(text: str) -> list[Message]:
    """A text prompt as messages: a user's, or a dialogue with hh-rlhf's marks, whose answer is still to come."""
    if _PYTHON_CHAT.match(text):
        raise DataError("the prompt is a chat as Python prints it, no JSON", fix="write it by json.dumps, or as a list")
    if not text.startswith("\n\nHuman:"):
        return [{"role": "user", "content": text}]
    messages = _dialogue(text)
    return messages[:-1] if messages[-1] == {"role": "assistant", "content": ""} else messages


def _dialogue(text: str) -> list[Message]:
    pieces = _HUMAN_MARK.split(text)[1:]
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": roles[role], "content": said.strip()} for role, said in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def _chat_column(row: Mapping[str, Any]) -> str:
    return next((name for name in (*_CHATS, "input", "prompt") if _chat_value(row, name)), "messages")


def _chat_value(row: Mapping[str, Any], name: str) -> bool:
    value = row.get(name)
    return value is not None if name in _CHATS else _is_chat(value)


def _instructed(row: Mapping[str, Any]) -> list[Message]:
    """Alpaca's columns, with LLaMA-Factory's history: instruction and input are joined by a line end."""
    messages: list[Message] = []
    for number, turns in enumerate(_history(row)):
        if not isinstance(turns, list | tuple) or len(turns) != 2 or not all(isinstance(turn, str) for turn in turns):
            raise DataError(f"history[{number}] is no pair of texts", fix='write ["question", "answer"]')
        messages += [{"role": "user", "content": turns[0]}, {"role": "assistant", "content": turns[1]}]
    more = row.get("input")
    if more is not None and not isinstance(more, str):
        raise DataError(f"column input is a {type(more).__name__}, not a text", fix="give a text, or drop the column")
    asked = f"{row['instruction']}\n{more}" if more else str(row["instruction"])
    return [*messages, {"role": "user", "content": asked}]


def _history(row: Mapping[str, Any]) -> Sequence[Any]:
    history = row.get("history")
    if history is not None and not isinstance(history, list | tuple):
        raise DataError(f"history is a {type(history).__name__}, not a list", fix='write [["question", "answer"], …]')
    return history or ()


def _answer_in(row: Mapping[str, Any], form: RowForm, answer_field: str) -> MessageList:
    """The answer that a column of its own holds: a text, or messages."""
    if form is RowForm.PROMPT_COMPLETION:
        names: tuple[str, ...] = ("completion",)
    else:
        names = (answer_field, *(name for name in _ANSWERS if name != answer_field))
    name = next((name for name in names if column_of(row, name) is not None), None)
    if name is None:
        raise DataError(
            f"a row has neither messages that end with an assistant's nor an answer in {', '.join(names)}; "
            f"it has {_names(row)}",
            fix="give messages that end with an assistant's, or name the answer's column (answerField)",
        )
    value = column_of(row, name)
    if isinstance(value, list | Mapping):
        return message_list(value, name, _tools_of(row))
    text = answer_text(value)
    return MessageList([{"role": "assistant", "content": text or ""}], [], frozenset())


def _side(given: Any, name: str, tools: Sequence[ToolSchema], *, images: bool) -> MessageList:
    """One side of a pair as messages: a text is the answer alone, or a whole dialogue with hh-rlhf's marks."""
    if _is_chat(given):
        given = _json_or_text(given)
    if not isinstance(given, str):
        return message_list(given, name, tools, images=images)
    if not given.startswith("\n\nHuman:"):
        return MessageList([{"role": "assistant", "content": given}], [], frozenset())
    return MessageList(_dialogue(given), [], frozenset())


def _prompt_of_pair(row: Mapping[str, Any], tools: Sequence[ToolSchema], *, images: bool) -> MessageList | None:
    """What a pair's row tells as its prompt. `messages` beside a pair is the chosen side once more: not asked."""
    for name in ("prompt", "conversations", "conversation", "question", "problem", "query"):
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, str) and not _is_chat(value):
            return MessageList(_asked(value), [], frozenset())
        return message_list(_json_or_text(value), name, tools, images=images)
    return MessageList(_instructed(row), [], frozenset()) if isinstance(row.get("instruction"), str) else None


def _behind(messages: list[Message], before: list[Message], side: str) -> list[Message]:
    """A side's own messages: those behind the prompt, where the side tells it again."""
    if messages[: len(before)] == before:
        return messages[len(before) :]
    if messages[0]["role"] == "system" and messages[1 : len(before) + 1] == before:
        raise DataError(
            f"column {side} begins with a system message that the prompt lacks",
            fix="give the system message in `prompt`, or drop the column `prompt`",
        )
    if any(message["role"] in ("user", "system") for message in messages):
        raise DataError(
            f"column {side} begins with another chat than the prompt", fix="drop the column `prompt`, or mend the row"
        )
    return messages


def _system_of(row: Mapping[str, Any]) -> list[Message]:
    name = next((name for name in _SYSTEMS if row.get(name) is not None), None)
    if name is None or row[name] == "":
        return []
    if not isinstance(row[name], str):
        raise DataError(f"column {name} is a {type(row[name]).__name__}, not a text", fix="give a text")
    return [{"role": "system", "content": row[name]}]


def _tools_of(row: Mapping[str, Any]) -> list[ToolSchema]:
    name = next((name for name in ("tools", "functions") if row.get(name)), None)
    return [] if name is None else tools_in(row[name], name)


def _assistants(listed: MessageList) -> tuple[int, ...]:
    places = enumerate(listed.messages)
    return tuple(place for place, it in places if it["role"] == "assistant" and place not in listed.muted)


def _refuse_unsaid(message: Message, place: str) -> None:
    if MARK in message["content"]:
        raise DataError(f"{place}: an assistant shows an image, which no model here does", fix="leave the row out")
    if not message["content"].strip() and not message.get("tool_calls") and not message.get("reasoning_content"):
        raise DataError(
            f"{place}: the assistant's turn is empty: nothing but an end token would be trained",
            fix="leave the row out, or give it an answer",
        )


def _refuse_unused(row: Mapping[str, Any]) -> None:
    """Shapes of answers that no training here uses, each with what to do instead."""
    completions = row.get("completions")
    if isinstance(completions, list) and row.get("labels") is not None:
        raise DataError(
            "completions is a list of steps with labels: process supervision, which no training here uses",
            fix="join the steps into one completion",
        )
    if isinstance(completions, list) and any(isinstance(entry, Mapping) for entry in completions):
        raise DataError("column completions has several scored completions", fix="make pairs of them first")
    of_chat = isinstance(row.get("label"), bool) and any(row.get(name) is not None for name in _CHATS)
    labelled = row.get("completion") is not None and str(row.get("label")).lower() in ("true", "false", "0", "1")
    if of_chat or labelled:
        raise DataError(
            "label: an unpaired preference (KTO), which no training here uses",
            fix="drop the column to train completions, with label true alone",
        )


def _refuse_media(row: Mapping[str, Any], *, images: bool = False) -> None:
    read = _IMAGE_COLUMNS if images else ()
    name = next((name for name in _MEDIA_COLUMNS if row.get(name) and name not in read), None)
    if name is not None:
        raise DataError(f"column {name} is not empty; this model reads text only", fix="drop such rows, or the column")


def _refuse_unshown_choices(row: Mapping[str, Any], prompt: str) -> None:
    """A question whose choices stand in a column of their own, and not in its text, can't be answered."""
    for name in ("choices", "options"):
        choices = row.get(name)
        if isinstance(choices, Mapping):  # a list beside letters, or a text by each letter
            lettered = [text for letter, text in choices.items() if len(str(letter)) == 1 and text is not None]
            choices = choices.get("text", lettered)
        listed = [choices] if isinstance(choices, str) else choices
        if isinstance(listed, list) and any(str(choice) not in prompt for choice in listed):
            fix = "write the choices into the prompt"
            raise DataError(f"column {name} holds choices that the prompt does not show", fix=fix)


def _is_plain(messages: Sequence[Message], count: int, listed: MessageList) -> bool:
    """Whether a row told just a prompt's text, or that and an answer's."""
    roles = [message["role"] for message in messages]
    return not listed.tools and roles == ["user", "assistant"][:count] and all(len(it) == 2 for it in messages)


def _no_prompt(row: Mapping[str, Any]) -> DataError:
    """The error of a row in which no column is a prompt, with the kinds of rows that people bring."""
    if isinstance(row.get("text"), str):
        return DataError(
            "no prompt and no answer; a text to learn whole is another training",
            fix="give a prompt and an answer, or messages",
        )
    if isinstance(row.get("chat"), str):
        return DataError("column chat is one text with role marks inside", fix="convert it to messages first")
    if row.get("input") is not None:
        return DataError("column input goes with an instruction, and the row has none", fix="name the column `prompt`")
    if (empty := next((name for name in PROMPT_COLUMNS if name in row), None)) is not None:
        return DataError(f"column {empty} is null", fix="drop the row, or give it a prompt")
    wanted = ", ".join(PROMPT_COLUMNS)
    return DataError(f"a row has none of the columns {wanted}; it has {_names(row)}", fix="name its column `prompt`")


def _is_chat(value: Any) -> bool:
    """Whether a value is a list of messages, or the JSON text of one."""
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return False
        value = _json_or_text(value)
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(entry, Mapping) and ("role" in entry or "from" in entry) for entry in value)
    )


def _json_or_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, row)) or "none at all"
