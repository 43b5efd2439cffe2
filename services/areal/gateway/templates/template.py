"""The pinned chat template of a gateway: ids of first prompts and later turns, how answers are read, what it can't do.

The form of its tool calls is the one by which a few calls, rendered by the template, are read back the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from areal.errors import DataError
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message
from areal.gateway.reading import AnswerReader, Manner, read
from areal.gateway.templates.forms import FORMS, THINKING, Grammar, Thinking
from areal.spec.job import JobSpec
from areal.spec.rollout import AGENT, ENVIRONMENT
from areal.values.generation import Ids
from areal.workflow.content import common_start
from areal.workflow.rows.rendering import render_chat
from areal.workflow.tokenizer import Tokenizer
from areal.yaml_file.table import read_table

_BEHIND = 8  # last tokens of a prompt in which the opening of its reasoning stands
_PROBES = read_table("areal.gateway.templates", "probes.yaml")
PLAIN: str = _PROBES["plain"]
"""The template of a model without one."""
_LOOK = "look"  # the tool that is called; another one stands beside it
_NAMES = dict.fromkeys((_LOOK, "peek"), _PROBES["parameters"])
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Looks.", "parameters": parameters}}
    for name, parameters in _NAMES.items()
]
MULTI_TURN = "multi-turn"  # the built-in workflow of this name
_IDS = ("call00000", f"functions.{_LOOK}:0")


@dataclass(frozen=True)
class FormProof:
    """The form of a template's calls, or why there is none."""

    form: Grammar | None
    why: str = ""


@dataclass(frozen=True)
class _ProbeText:
    """What a model would have sampled for a call, and whether its prompt ends within its reasoning."""

    answer: str
    thinking: bool


def prove_form(tokenizer: Tokenizer, tags: Thinking) -> FormProof:
    """The first form that reads back what the template writes."""
    if not tokenizer.has_chat_template:
        return FormProof(None, "it has no chat template")
    why = "it writes no calls of tools"
    for name in _IDS:
        try:
            written = [_written(tokenizer, probe, name, tags) for probe in _PROBES["arguments"]]
        except DataError as error:
            why = error.message
            continue
        for form in FORMS.values():
            if all(
                form.opening in one.answer and _reads(tokenizer, form, tags, one, probe)
                for one, probe in zip(written, _PROBES["arguments"], strict=True)
            ):
                return FormProof(form)
        why = f"none of the forms known here reads how it writes a call: {written[0].answer.strip()[:80]!r}"
    return FormProof(None, why)


def refuse_template(tokenizer: Tokenizer, spec: JobSpec) -> None:
    """Raise DataError for a chat template that can't be continued behind an answer, where the job's episodes go on."""
    rollout = spec.rollout
    turns = {AGENT: 2, ENVIRONMENT: rollout.max_turns, MULTI_TURN: rollout.max_turns}.get(rollout.workflow, 1)
    if not spec.is_rl or turns < 2 or rollout.chat_template is False:
        return
    if why := tokenizer.turns.unproved():
        raise DataError(
            f"the model's chat template can't be continued behind an answer: {why}",
            fix="name another template in model.chatTemplate, or train single turns",
        )
    if rollout.gateway.volatile_system == "keepFirst" and (why := tokenizer.turns.unproved(("system", "user"))):
        raise DataError(
            f"rollout.gateway.volatileSystem: keepFirst can't be: a system message can't follow an answer: {why}",
            fix="write fork, or name another template in model.chatTemplate",
        )


def without_tools(tokenizer: Tokenizer, spec: JobSpec) -> str:
    """Reason to refuse an agent's requests with tools; empty where they are served, or there is no agent."""
    if not spec.is_rl or spec.rollout.workflow != AGENT or not tokenizer.has_chat_template:
        return ""
    if why := prove_form(tokenizer, thinking_of(tokenizer) or THINKING[0]).why:
        return f"requests with tools will be refused, for calls by the model's chat template can't be read: {why}"
    why = tokenizer.turns.unproved(("tool",), calls=1)
    return f"results of tools will be refused, for the model's chat template can't give them: {why}" if why else ""


def thinking_of(tokenizer: Tokenizer) -> Thinking | None:
    """The model's marks of reasoning; None where it has no token for it."""
    return next((tags for tags in THINKING if any(text in tags.opening for text in tokenizer.added_texts)), None)


def _written(tokenizer: Tokenizer, arguments: Mapping[str, Any], name: str, tags: Thinking) -> _ProbeText:
    """The answer with a call of this id and these arguments, without the token that ends it. Raises DataError."""
    call = {"id": name, "type": "function", "function": {"name": _LOOK, "arguments": arguments}}
    asked = [{"role": "user", "content": "q"}]
    chat: list[dict[str, Any]] = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    whole = tokenizer.render_chat(chat, tools=_TOOLS, generation_prompt=False)
    prompt = tokenizer.render_chat(asked, tools=_TOOLS)
    begin = common_start(whole, prompt)
    control = tokenizer.content.control
    for token in control.finditer(whole) if control is not None else ():
        if token.start() < begin < token.end():
            begin = token.start()
    text = whole[begin:]
    if _LOOK not in text:
        raise DataError("it writes no calls of tools")
    ends = [place for end in tokenizer.end_texts if (place := text.find(end, text.find(_LOOK))) >= 0]
    return _ProbeText(text[: min(ends)] if ends else text, whole[:begin].rstrip().endswith(tags.opening))


def _reads(
    tokenizer: Tokenizer, form: Grammar, tags: Thinking, written: _ProbeText, arguments: Mapping[str, Any]
) -> bool:
    manner = Manner(form=form, names=_NAMES, thinks=True, thinking=written.thinking, tags=tags)
    ids = tokenizer.encode(written.answer, special=False).tolist()
    answer: Message = read(AnswerReader(tokenizer, manner), ids)
    found = [(call.name, _canonical(json.loads(call.arguments))) for call in answer.tool_calls]
    return found == [(_LOOK, _canonical(arguments))]


def _canonical(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)


class Template:
    """Encodes the prompts of one model. `unproved` says why a conversation can't be continued exactly; or is empty."""

    def __init__(self, tokenizer: Tokenizer, *, chat_template: bool | None = None) -> None:
        self._own = tokenizer.has_chat_template if chat_template is None else chat_template
        self._tokenizer = tokenizer if self._own else tokenizer.with_template(PLAIN)
        self.thinking = thinking_of(self._tokenizer)
        self.thinks = self.thinking is not None
        self.unproved = self._tokenizer.turns.unproved()

    @cached_property
    def calls(self) -> FormProof:
        """The form of the template's tool calls, proved by a round trip."""
        return prove_form(self._tokenizer, self.tags) if self._own else FormProof(FORMS["HERMES"])

    @property
    def form(self) -> Grammar | None:
        """The form of calls; None where none is proved."""
        return self.calls.form

    @property
    def tags(self) -> Thinking:
        """The marks of reasoning."""
        return self.thinking or THINKING[0]

    def opens_thinking(self, prompt: Ids) -> bool:
        """Whether a prompt ends within the model's reasoning."""
        if self.thinking is None:
            return False
        return self._tokenizer.decode(prompt[-_BEHIND:], skip_special=False).rstrip().endswith(self.thinking.opening)

    @property
    def digest(self) -> str:
        """Of tokenizer and template."""
        return self._tokenizer.digest

    def text(self, text: str) -> Ids:
        """The ids of a prompt that is no chat `[tokens]`: control strings in it are control tokens."""
        return self._tokenizer.encode(text)

    def first(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        kwargs: Mapping[str, Any] = {},
        *,
        continues: bool = False,
    ) -> Ids:
        """All ids of a prompt `[tokens]`. Raises Refused when the template doesn't take these messages.

        `continues`: the last message is the assistant's and begun; the prompt ends where it ends, its turn left open.
        """
        named = [dict(tool) for tool in tools]
        try:
            return self._tokenizer.encode_chat(
                render_chat(_shown(messages), self._tokenizer, tools=named, kwargs=kwargs, continues=continues),
                [image for message in messages for image in message.images],
            )
        except DataError as error:
            raise CallRefusal(error.message, code="template_refused", field="messages") from error

    def rendered(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, opened: bool = True
    ) -> str:
        """The text of a chat, with the next answer opened or not. Raises Refused."""
        named = [dict(tool) for tool in tools]
        try:
            return str(render_chat(_shown(messages), self._tokenizer, tools=named, generation_prompt=opened))
        except DataError as error:
            raise CallRefusal(error.message, code="template_refused", field="messages") from error

    def begun(self, message: Message, tools: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]) -> Ids | None:
        """The ids of an answer that its client began, behind its opening `[tokens]`.

        None where the template writes it otherwise than behind the opening of a new one. Raises Refused.
        """
        asked = Message("user", "q")
        opening = self.first([asked], tools, kwargs)
        whole = self.first([asked, message], tools, kwargs, continues=True)
        same = len(whole) >= len(opening) and bool((whole[: len(opening)] == opening).all())
        return whole[len(opening) :] if same else None

    def without_later_system(self) -> str:
        """Reason why a system message can't follow an answer; empty when it can."""
        return self._tokenizer.turns.unproved(("system", "user"))

    def bridge(
        self,
        messages: Sequence[Message],
        *,
        last_id: int | None,
        tools: Sequence[Mapping[str, Any]] = (),
        answer: Message | None = None,
        kwargs: Mapping[str, Any] = {},
    ) -> Ids:
        """The ids between an answer whose last sampled token is `last_id` and the next answer.

        The close of the answer's turn is among them unless the model sampled it itself; results of calls are written
        behind the calls of `answer`. Raises Refused when the template can't be continued exactly.
        """
        before = [] if answer is None or not answer.tool_calls else _shown([answer])
        calls = before[0]["tool_calls"] if before else []
        new = _shown([*([answer] if before and answer is not None else []), *messages])[len(before) :]
        roles = [message["role"] for message in new]
        if unproved := self._tokenizer.turns.unproved(roles, calls=len(calls), kwargs=kwargs):
            raise CallRefusal(
                f"this model's chat template can't be continued exactly: {unproved}. Only the first call of an "
                "episode can be trained",
                code="unproved_template",
                field="messages",
            )
        try:
            return self._tokenizer.turns.ids(
                new,
                last_id=last_id,
                calls=calls,
                tools=[dict(tool) for tool in tools],
                kwargs=kwargs,
                images=[image for message in messages for image in message.images],
            )
        except DataError as error:
            raise CallRefusal(error.message, code="template_refused", field="messages") from error


def _shown(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates read them; a result carries the name of its call, which some write into its header."""
    names: dict[str, str] = {}
    shown = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        named = {"name": names[message.tool_call_id]} if message.tool_call_id in names else {}
        shown.append(named | message.as_template())
    return shown
