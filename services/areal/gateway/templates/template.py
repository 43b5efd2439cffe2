"""The pinned chat template: ids of a first prompt, and the bridge of ids between an answer and the next one.

The bridge is what the template puts after an assistant's text, rendered behind a synthetic chat. It is used only when
it is proved, at the start, that a whole conversation rendered at once says the same; what can't be proved is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from areal.errors import DataError
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, ToolCall
from areal.gateway.templates.content import ContentEncoder, RenderedChat, render
from areal.gateway.tools import Form, digest_of, form_of
from areal.values.generation import Ids
from areal.workflow.tokenizer import Tokenizer

# Without a template of its own a model reads the first text as it is, and later ones between line ends, as the
# workflow multi-turn does.
PLAIN = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{{ message['content'] }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ '<tool_call>' + call['function'] | tojson + '</tool_call>' }}{%- endfor -%}{{ eos_token }}"
    "{%- elif loop.first -%}{{ message['content'] }}"
    "{%- else -%}{{ '\\n' + message['content'] + '\\n' }}{%- endif -%}"
    "{%- endfor -%}"
)
THINK = "<think>"
_ANSWER = "\u2402areal-answer\u2403"  # stands for an answer in the synthetic chat
_TRIALS = (  # conversations by which a bridge is proved: the answers so far, then what the user says
    (("7",), "8"),
    (("Yes, it is.",), "Why?\n\nSay more."),
    (("one\n2", "three"), " four "),
)


class Template:
    """Encodes the prompts of one model. `unproved` says why a conversation can't be continued exactly; or is empty."""

    def __init__(self, tokenizer: Tokenizer, *, chat_template: bool | None = None) -> None:
        use_own = tokenizer.has_chat_template if chat_template is None else chat_template
        self._tokenizer = tokenizer if use_own else tokenizer.with_template(PLAIN)
        self._encoder = ContentEncoder(self._tokenizer)
        self.form: Form | None = form_of(self._tokenizer.chat_template or "")
        self.thinks = THINK in self._tokenizer.added_texts
        self.unproved = self._prove()
        self._unproved_tools: dict[str, str] = {}  # by the tools' digest

    def opens_thinking(self, prompt: Ids) -> bool:
        """Whether a prompt ends within the model's reasoning."""
        return self.thinks and self._tokenizer.decode(prompt[-4:], skip_special=False).rstrip().endswith(THINK)

    @property
    def digest(self) -> str:
        """Of tokenizer and template."""
        return self._tokenizer.digest

    def text(self, text: str) -> Ids:
        """The ids of a prompt that is no chat `[tokens]`: control strings in it are control tokens."""
        return self._tokenizer.encode(text)

    def first(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, continues: bool = False
    ) -> Ids:
        """All ids of a prompt `[tokens]`. Raises Refused when the template doesn't take these messages.

        `continues`: the last message is the assistant's and begun; the prompt ends where it ends, its turn left open.
        """
        return self._encoder.encode(self._begun(messages, tools) if continues else self._render(messages, tools))

    def bridge(
        self, messages: Sequence[Message], *, last_id: int | None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Ids:
        """The ids between an answer whose last sampled token is `last_id` and the next answer.

        The close of the answer's turn is among them unless the model sampled it itself. Raises Refused when the
        template can't be continued exactly.
        """
        if unproved := self.unproved or self._without_proof(messages, tools):
            raise CallRefusal(
                f"this model's chat template can't be continued exactly: {unproved}. Only the first call of an "
                "episode can be trained",
                code="unproved_template",
                field="messages",
            )
        tail = self._tail(messages, tools)
        sampled = "" if last_id is None else self._tokenizer.text_of(last_id)
        if sampled and last_id in self._tokenizer.eos_ids and tail.text.startswith(sampled):
            tail = tail.after(len(sampled))
        return self._encoder.encode(tail)

    def rendered(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, opened: bool = True
    ) -> str:
        """The text of a chat, with the next answer opened or not. Raises Refused."""
        return self._render(messages, tools, generation_prompt=opened).text

    def without_later_system(self) -> str:
        """Why a system message can't follow an answer; empty when it can."""
        said = "\u2402areal-system\u2403"
        try:
            ids = self.bridge([Message("system", said), Message("user", "q")], last_id=None)
        except CallRefusal as error:
            return error.message
        shown = self._tokenizer.decode(ids, skip_special=False).count(said)
        return "" if shown == 1 else "the chat template writes a later system message elsewhere, or not at all"

    def _begun(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> RenderedChat:
        """A chat whose last message goes on: cut where a mark behind its text stands."""
        text = messages[-1].text
        kept = text.rstrip()
        marked = [*messages[:-1], replace(messages[-1], text=kept + _ANSWER)]
        whole = self._render(marked, tools, generation_prompt=False)
        before, found, _ = whole.text.rpartition(_ANSWER)
        if not found:
            raise CallRefusal(
                "the chat template rewrites the answer that the last message begins",
                code="template_refused",
                field="messages",
            )
        data = tuple((low, high) for low, high in whole.data if high <= len(before))
        return RenderedChat(before + text[len(kept) :], data)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, generation_prompt: bool = True
    ) -> RenderedChat:
        shown = [message.as_template() for message in messages]
        try:
            return render(
                shown,
                tools,
                lambda chat, named: self._tokenizer.render_chat(chat, tools=named, generation_prompt=generation_prompt),
                self._encoder.control,
            )
        except DataError as error:
            raise CallRefusal(error.message, code="template_refused", field="messages") from error

    def _tail(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> RenderedChat:
        """What the template says after an answer that is followed by these messages."""
        whole = self._render([Message("user", "q"), Message("assistant", _ANSWER), *messages], tools)
        _, answer, tail = whole.text.partition(_ANSWER)
        if not answer:
            raise CallRefusal("it leaves out what an assistant said", code="template_refused", field="messages")
        return whole.after(len(whole.text) - len(tail))

    def _prove(self) -> str:
        """Why a conversation can't be continued exactly; empty when every trial could."""
        try:
            return self._try()
        except CallRefusal as error:
            return error.message

    def _without_proof(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """Why results of tools can't be given exactly; empty when they can, or there are none."""
        if not any(message.role == "tool" for message in messages):
            return ""
        digest = digest_of(tools)
        if digest not in self._unproved_tools:
            try:
                self._unproved_tools[digest] = self._try_tools(tools)
            except CallRefusal as error:
                self._unproved_tools[digest] = error.message
        return self._unproved_tools[digest]

    def _try_tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """What follows a call is what follows a text, and neither changes what was written before."""
        user, result = Message("user", "q"), Message("tool", "8", tool_call_id="c")
        chat = [user, Message("assistant", "7"), result]
        if why := self._continues(self._text([user], tools), chat, "7", [result], tools):
            return why
        call = ToolCall("c", str(tools[0]["function"]["name"]) if tools else "f", "{}")
        called = self._text([user, Message("assistant", "", (call,)), result], tools)
        if not called.endswith(self._tail([result], tools).text):
            return "the result of a call is written differently from one after a text"
        return ""

    def _try(self) -> str:
        for answers, last in _TRIALS:
            chat = [Message("user", "q")]
            said = self._text(chat)
            for answer in answers[:-1]:
                chat += [Message("assistant", answer), Message("user", "and")]
                if why := self._continues(said, chat, answer, [Message("user", "and")]):
                    return why
                said = self._text(chat)
            chat += [Message("assistant", answers[-1]), Message("user", last)]
            if why := self._continues(said, chat, answers[-1], [Message("user", last)]):
                return why
        return ""

    def _continues(
        self,
        prompt: str,
        chat: Sequence[Message],
        answer: str,
        last: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Whether the whole chat is the prompt, the answer and the bridge, in this order; else why not."""
        tail = self._tail(last, tools)
        whole = self._text(chat, tools)
        if whole != prompt + answer + tail.text:
            return "a later turn changes how earlier ones are written"
        if not any(tail.text.startswith(end) for end in self._tokenizer.end_texts):
            return "an answer isn't closed by a token that ends it"
        ids, close = self._tokenizer.encode(whole, special=False), self._encoder.encode(tail)
        if ids[len(ids) - len(close) :].tolist() != close.tolist():
            return "the tokens of a turn depend on what stands before"
        return ""

    def _text(self, chat: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return self.rendered(chat, tools)
