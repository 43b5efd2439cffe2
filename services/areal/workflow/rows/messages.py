"""Normal form of chat messages and tools, whatever dialect a dataset writes them in.

A message becomes `{role, content, reasoning_content?, tool_calls?, tool_call_id?, name?}` with a text as content, a
tool `{type: function, function: {name, description?, parameters}}`, as OpenAI's chat API has them and chat templates
read them. Owns the dialects: OpenAI's (parts, functions of 2023, Responses), Anthropic's blocks, Gemini's parts,
ShareGPT's turns, xlam's flat parameters. Pure. A value that has no place in a text chat is refused with its place,
never dropped.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from areal.errors import DataError
from areal.values.images import MARK
from areal.values.strict_json import read_json

Message = dict[str, Any]
ToolSchema = dict[str, Any]

ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool",
    "function_call": "assistant", "tool_call": "assistant",
}  # fmt: skip
"""Role of a dialect → role of the normal form."""
_CALLING_ROLES = ("function_call", "tool_call")  # the turn's text is the call's JSON
_TEXT_PARTS = ("text", "input_text", "output_text")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_IMAGE_PARTS = ("image", "image_url", "input_image")
_MEDIA = ("image", "audio", "video", "file", "document")
_UNREAD_KEYS = ("refusal", "image", "images", "audio", "audios", "video", "videos")
_JSON_TYPES = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean",
    "list": "array", "tuple": "array", "set": "array", "dict": "object", "any": "string",
}  # fmt: skip


@dataclass(frozen=True)
class MessageList:
    """Messages in the normal form. `muted` are the assistant's turns that the row wants left out of a loss."""

    messages: list[Message]
    tools: list[ToolSchema]
    muted: frozenset[int]
    images: tuple[Any, ...] = ()  # what the marks in texts stand for; None where only that there is one is told


class PlaceError(DataError):
    """A value that is no message, call or tool; `place` says where it stands: `messages[0].content`."""

    def __init__(self, place: str, what: str, *, fix: str) -> None:
        super().__init__(f"{place} {what}", fix=fix)
        self.place = place


@dataclass
class MessageReader:
    """The messages read so far, and the calls that no result has answered.

    `verbatim`, for requests: arguments of calls stay the text that they are (an object becomes JSON), a call without an
    id has none, and an assistant or a tool may say nothing.
    """

    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    verbatim: bool = False
    messages: list[Message] = field(default_factory=list)
    muted: set[int] = field(default_factory=set)
    calls: int = 0
    unanswered: list[tuple[str, str]] = field(default_factory=list)  # (id, name)
    images: list[Any] | None = None  # those of parts so far; None where a text alone is read

    def read(self, entry: Any, place: str) -> None:
        """Add a message, and before it the results of tools that it holds. Raises PlaceError."""
        _read(entry, place, self)


def message_list(given: Any, place: str, tools: Sequence[ToolSchema] = (), *, images: bool = False) -> MessageList:
    """Messages of a row.

    Args:
        given: a list of messages, or the JSON text of one.
        place: where they stand in the row, for errors: "messages".
        tools: the row's own tools, in the normal form; tools that messages carry are added.
        images: whether a part may be an image.

    Raises:
        DataError: with the place of the value that is no message.
    """
    if isinstance(given, str):
        given = _parsed(given, place, "a list of messages")
    if isinstance(given, Mapping):
        given = _by_columns(given) or [given]
    if not isinstance(given, list | tuple):
        raise PlaceError(place, f"is a {type(given).__name__}, not a list of messages", fix="give a list of messages")
    if not given:
        raise PlaceError(place, "is empty", fix="drop the row, or give it a message")
    known = [*tools]
    for number, entry in enumerate(given):
        if isinstance(entry, Mapping) and entry.get("tools"):
            known += [tool for tool in tools_in(entry["tools"], f"{place}[{number}].tools") if tool not in known]
    reader = MessageReader({tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in known})
    reader.images = [] if images else None
    for number, entry in enumerate(given):
        reader.read(entry, f"{place}[{number}]")
    return MessageList(reader.messages, known, frozenset(reader.muted), tuple(reader.images or ()))


def _by_columns(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Messages of a mapping of lists, as `datasets` gives a sequence of objects; none of another mapping."""
    lists = [value for value in given.values() if isinstance(value, list)]
    if len(lists) < len(given) or not lists or len({len(value) for value in lists}) > 1:
        return []
    return [dict(zip(given, values, strict=True)) for values in zip(*lists, strict=True)]


def tools_in(given: Any, place: str) -> list[ToolSchema]:
    """Tools of a row or message: a list of schemas in any dialect, or its JSON text; none for null and "".

    Raises DataError for an entry that names no function.
    """
    if given is None or given == "":
        return []
    if isinstance(given, str):
        given = _parsed(given, place, "a list of tools")
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, list | tuple):
        raise PlaceError(place, f"is a {type(given).__name__}, not a list of tools", fix="give a list of schemas")
    return [_tool(entry, f"{place}[{number}]") for number, entry in enumerate(given)]


def _tool(entry: Any, place: str) -> ToolSchema:
    if isinstance(entry, str):
        entry = _parsed(entry, place, "a tool")
    function = entry.get("function") if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping):
        function = entry
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise PlaceError(place, "names no function", fix='write {"type": "function", "function": {"name": …}}')
    plain = _without_null(function)
    schema: dict[str, Any] = {"name": plain["name"]}
    if "description" in plain:
        schema["description"] = plain["description"]
    parameters = plain.get("parameters", plain.get("input_schema"))
    if parameters is not None:
        schema["parameters"] = _parameters(parameters, place)
    return {"type": "function", "function": schema}


def _parameters(given: Any, place: str) -> dict[str, Any]:
    """A JSON schema of an object. A flat map of names to descriptions (xlam) becomes its properties."""
    if isinstance(given, str):
        given = _parsed(given, f"{place}.parameters", "a JSON schema")
    if not isinstance(given, Mapping):
        raise PlaceError(f"{place}.parameters", f"is a {type(given).__name__}, not a JSON schema", fix="give an object")
    flat = bool(given) and "properties" not in given and all(isinstance(value, Mapping) for value in given.values())
    if not flat:
        return dict(given)
    return {"type": "object", "properties": {name: _typed(value) for name, value in given.items()}}


def _typed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A property whose `type` is written as Python writes it: "str, optional", "List[int]"."""
    written = schema.get("type")
    if not isinstance(written, str):
        return dict(schema)
    word = written.split(",")[0].strip().lower().partition("[")[0]
    return {**schema, "type": _JSON_TYPES.get(word, written)}


def _read(entry: Any, place: str, reader: MessageReader) -> None:
    if not isinstance(entry, Mapping):
        raise PlaceError(place, f"is a {type(entry).__name__}, no message", fix='write {"role": …, "content": …}')
    given = {key: value for key, value in entry.items() if value is not None}
    named = given.get("role", given.get("from"))
    key = "role" if "role" in given or "from" not in given else "from"
    role = ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise PlaceError(
            f"{place}.{key}", f"is {named!r}", fix="roles are system, user, assistant and tool (and ShareGPT's names)"
        )
    unread = next((name for name in _UNREAD_KEYS if given.get(name)), None)
    if unread is not None:
        raise PlaceError(f"{place}.{unread}", "isn't empty, and no text chat has it", fix="drop the key, or such rows")
    spot = next((name for name in ("content", "value", "parts") if name in given), "content")
    content, own_place = given.get(spot), f"{place}.{spot}"
    calls = _calls_of(given, place, reader)
    if named in _CALLING_ROLES:
        parsed = _parsed(content, own_place, "a call") if isinstance(content, str) else content
        listed = parsed if isinstance(parsed, list) else [parsed]
        calls += [_call(call, f"{own_place}", reader) for call in listed]
        content = ""
    parts, pictured = _ContentParts(own_place, role, reader), len(reader.images or ())
    parts.read(content)
    if reader.images is not None:
        texts = [*parts.texts, *(result["content"] for result in parts.results)]
        if sum(text.count(MARK) for text in texts) != len(reader.images) - pictured:
            raise PlaceError(own_place, f"holds {MARK!r}, which stands for images here", fix="leave that character out")
    calls += parts.calls
    if reader.verbatim:  # what clients add to an answer that they send back is no fault
        given = {key: value for key, value in given.items() if key not in _REASONING_KEYS or isinstance(value, str)}
    reasoning = _reasoning_of(given, parts.reasoning, place, strict=not reader.verbatim)
    for result in parts.results:
        reader.messages.append(result)
    if parts.results and not parts.texts:
        return
    said = content is not None or calls or reasoning or (reader.verbatim and role in ("assistant", "tool"))
    if not said:
        raise PlaceError(place, "says nothing", fix="drop the message, or give it a content")
    message: Message = {"role": role, "content": "".join(parts.texts)}
    if role == "assistant":
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        if not reader.verbatim and not _counted(given, place):
            reader.muted.add(len(reader.messages))
    elif calls or reasoning:
        does = "calls a tool" if calls else "has reasoning"
        raise PlaceError(place, f"{does}, but is {role}'s", fix="that stands in the assistant's messages")
    if role == "tool" and (answered := _answered(given, reader)):
        message["tool_call_id"] = answered
    if isinstance(given.get("name"), str):
        message["name"] = given["name"]
    reader.messages.append(message)


def _reasoning_of(given: Mapping[str, Any], parts: Sequence[str], place: str, *, strict: bool) -> str:
    """What an answer thinks before it: by a key or in parts, which are joined."""
    for name in _REASONING_KEYS:
        if name in given and not isinstance(given[name], str):
            raise PlaceError(f"{place}.{name}", f"is a {type(given[name]).__name__}, not a text", fix="give a text")
    told = [text for text in ("".join(parts), *(given[name] for name in _REASONING_KEYS if name in given)) if text]
    if strict and len(set(told)) > 1:
        raise PlaceError(place, "tells its reasoning twice, in different words", fix="keep one of them")
    return told[0] if told else ""


def _counted(given: Mapping[str, Any], place: str) -> bool:
    """Whether a loss counts an assistant's turn: `weight` 0 or 1, `train` and `loss` true or false."""
    weight = given.get("weight", given.get("loss_weight", 1))
    if weight not in (0, 1):
        raise PlaceError(f"{place}.weight", f"is {weight!r}", fix="a turn is trained (1) or not (0)")
    train = given.get("train", True)
    if not isinstance(train, bool):
        raise PlaceError(f"{place}.train", f"is {train!r}", fix="write true or false")
    return bool(weight) and train and given.get("loss") is not False


class _ContentParts:
    """Content of one message: a text, null, parts of any dialect; a tool's may be any value, written as JSON."""

    def __init__(self, place: str, role: str, reader: MessageReader) -> None:
        self._place = place
        self._role = role
        self._reader = reader
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.results: list[Message] = []

    def read(self, content: Any) -> None:
        if content is None:
            return
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, list | tuple) and all(isinstance(part, str | Mapping) for part in content):
            if self._role == "tool" and not all(isinstance(part, str) or _is_part(part) for part in content):
                self.texts.append(_as_json(content))
                return
            for number, part in enumerate(content):
                self._part(part, f"{self._place}[{number}]")
        elif self._role == "tool":
            self.texts.append(_as_json(content))
        else:
            raise PlaceError(
                self._place, f"is a {type(content).__name__}, not a text", fix="give a text, or a list of text parts"
            )

    def _part(self, part: str | Mapping[str, Any], place: str) -> None:
        if isinstance(part, str):
            self.texts.append(part)
            return
        part = {key: value for key, value in part.items() if value is not None}
        if "value" in part:  # LLaMA-Factory's name of a part's text
            part.setdefault("text", part["value"])
        kind = str(part.get("type") or "")
        if kind == "redacted_thinking" and self._reader.verbatim:
            return  # nobody can read it
        if kind in ("thinking", "reasoning"):
            self.reasoning.append(str(part.get("thinking") or part.get("text") or ""))
        elif kind == "tool_use" or "functionCall" in part:
            call = part.get("functionCall", part)
            if not isinstance(call, Mapping):
                raise PlaceError(place, "names no function", fix='write {"functionCall": {"name": …, "args": {…}}}')
            wanted = {"id": call.get("id"), "name": call.get("name"), "arguments": call.get("input", call.get("args"))}
            self.calls.append(_call(wanted, place, self._reader))
        elif kind == "tool_result" or "functionResponse" in part:
            self.results.append(self._result(part, place))
        elif kind in _TEXT_PARTS or (not kind and isinstance(part.get("text"), str)):
            if not isinstance(part.get("text"), str):
                raise PlaceError(f"{place}.text", "is no text", fix="give the part a text")
            self.texts.append(part["text"])
        elif kind in _IMAGE_PARTS and self._reader.images is not None:
            self._reader.images.append(_image_in(part))
            self.texts.append(MARK)
        else:
            named = next((word for word in _MEDIA if word in kind or any(word in key for key in part)), None)
            article = "an" if named in ("image", "audio") else "a"
            what = f"{article} {named}" if named else f"of type {kind!r}" if kind else "no text"
            raise PlaceError(place, f"is {what}; this model reads text only", fix="leave such rows out")

    def _result(self, part: Mapping[str, Any], place: str) -> Message:
        response = part.get("functionResponse")
        if isinstance(response, Mapping):
            result = {"name": response.get("name"), "tool_call_id": response.get("id")}
            content = response.get("response")
        else:
            result, content = {"tool_call_id": part.get("tool_use_id")}, part.get("content")
        inner = _ContentParts(f"{place}.content", "tool", self._reader)
        inner.read("" if content is None else content)
        message: Message = {"role": "tool", "content": "".join(inner.texts)}
        given = {key: value for key, value in result.items() if value is not None}
        if answered := _answered(given, self._reader):
            message["tool_call_id"] = answered
        return message


def _image_in(part: Mapping[str, Any]) -> Any:
    """What a part names as its image, in the dialects of OpenAI, Anthropic and transformers; None where it doesn't."""
    source = part.get("source")
    if isinstance(source, Mapping) and source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return next((part[name] for name in ("image_url", "image", "url", "path", "source") if name in part), None)


def _is_part(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("type"), str) or set(part) == {"text"}


def _calls_of(given: Mapping[str, Any], place: str, reader: MessageReader) -> list[dict[str, Any]]:
    listed = given.get("tool_calls") or []
    if isinstance(listed, str):
        listed = _parsed(listed, f"{place}.tool_calls", "a list of calls")
    if not isinstance(listed, list | tuple):
        raise PlaceError(f"{place}.tool_calls", f"is a {type(listed).__name__}, not a list", fix="give a list of calls")
    calls = [_call(entry, f"{place}.tool_calls[{number}]", reader) for number, entry in enumerate(listed)]
    if (single := given.get("function_call")) is not None:
        single = _parsed(single, f"{place}.function_call", "a call") if isinstance(single, str) else single
        calls.append(_call(single, f"{place}.function_call", reader))
    return calls


def _call(entry: Any, place: str, reader: MessageReader) -> dict[str, Any]:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    inner, here = (function, f"{place}.function") if isinstance(function, Mapping) else (entry, place)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise PlaceError(place, "names no function", fix='write {"function": {"name": …, "arguments": {…}}}')
    identity = entry.get("id") or ("" if reader.verbatim else f"call_{reader.calls}")
    reader.calls += 1
    reader.unanswered.append((str(identity), inner["name"]))
    given = inner.get("arguments")
    if reader.verbatim:
        text = given if isinstance(given, str) else json.dumps({} if given is None else given, ensure_ascii=False)
        return {"id": str(identity), "type": "function", "function": {"name": inner["name"], "arguments": text}}
    arguments = _arguments(given, f"{here}.arguments")
    schema = reader.schemas.get(inner["name"])
    if schema is not None:
        arguments = _allowed(arguments, schema)
    function = {"name": inner["name"], "arguments": arguments}
    return {"id": str(identity), "type": "function", "function": function}


def _arguments(given: Any, place: str) -> dict[str, Any]:
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        try:
            given = read_json(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping):
        raise PlaceError(place, "is no JSON object", fix="write the call's arguments as an object")
    return dict(given)


def _allowed(value: Any, schema: Any) -> Any:
    """A call's arguments without nulls that the tool's schema does not allow: parquet gives every call every key."""
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        kept = {name: inner for name, inner in value.items() if inner is not None or _nullable(known.get(name))}
        return {name: _allowed(inner, known.get(name)) for name, inner in kept.items()}
    return [_allowed(inner, schema.get("items")) for inner in value] if isinstance(value, list) else value


def _nullable(schema: Any) -> bool:
    """Whether a JSON schema lets a value be null."""
    if not isinstance(schema, Mapping):
        return schema is True
    kinds, choices = schema.get("type"), [*_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))]
    if None in _listed(schema.get("enum")) or "null" in _listed(kinds) or kinds == "null":
        return True
    return schema.get("nullable") is True or any(
        isinstance(choice, Mapping) and _nullable(choice) for choice in choices
    )


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _answered(given: Mapping[str, Any], reader: MessageReader) -> str:
    """The id of the call that a tool's message answers; "" where the row has no calls."""
    several = given.get("tool_call_ids")
    named = given.get("tool_call_id") or (several[0] if isinstance(several, list) and len(several) == 1 else None)
    open_calls = reader.unanswered
    name = given.get("name")
    found = next((call for call in open_calls if call[0] == named), None) if named else None
    if not named and open_calls:
        found = next((call for call in open_calls if call[1] == name), open_calls[0])
    if found is not None:
        open_calls.remove(found)
    return str(named or (found[0] if found else ""))


def _parsed(text: str, place: str, what: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        raise PlaceError(place, f"is a text that is no JSON of {what}", fix=f"give {what}") from None


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _without_null(value: Any) -> Any:
    """Nulls of mappings dropped at every depth: a table's schema makes them, no tool says them."""
    if isinstance(value, Mapping):
        return {key: _without_null(inner) for key, inner in value.items() if inner is not None}
    return [_without_null(inner) for inner in value] if isinstance(value, list | tuple) else value


def texts_of(message: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a message in the normal form that its rendering has to show: content, names and texts of calls."""
    if message.get("content"):
        yield str(message["content"])
    for call in message.get("tool_calls") or ():
        yield call["function"]["name"]
        yield from _leaves(call["function"]["arguments"])


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
