"""Forms of tool calls: how families of models write them, as data, and one parser for all of them.

What can't be read as a call of a tool that the request names stays text: nothing is guessed, and nothing read is ever
encoded again. Pure.
"""

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from areal.values.strict_json import MOST_DEPTH, first_json, members, read_json
from areal.yaml_file.table import read_table, tuple_fields

QUOTE = '<|"|>'  # around Gemma's texts


class ArgumentKind(Enum):
    """How arguments are written."""

    JSON = auto()
    TAGS = auto()  # each between tags of its own, typed by the tool's schema
    PYTHON = auto()  # a call of Python with literals
    GEMMA = auto()  # {key:<|"|>text<|"|>,other:7}


@dataclass(frozen=True)
class Grammar:
    """One form. Without an opening an answer is nothing but calls; without a closing a call ends with the answer.

    `head` matches what comes before a call's arguments, with the groups `name` and sometimes `id`; without one the name
    stands in the JSON. `tail` comes behind the arguments, `pair` is one of them between tags, with the groups `key`,
    `value` and sometimes `string`, which says whether it is a text.
    """

    opening: str = ""
    closing: str = ""
    arguments: ArgumentKind = ArgumentKind.JSON
    head: re.Pattern[str] | None = None
    tail: re.Pattern[str] = re.compile("")
    pair: re.Pattern[str] | None = None
    may_end: bool = False  # the closing may be missing at the end of the answer

    @property
    def shown(self) -> str:
        """All that it writes itself, as one text: tokens in it are no layout to be left out."""
        patterns = (self.head, self.tail, self.pair)
        quote = QUOTE if self.arguments is ArgumentKind.GEMMA else ""
        told = [re.sub(r"\\(.)", r"\1", pattern.pattern) for pattern in patterns if pattern is not None]
        return " ".join((self.opening, self.closing, quote, *told))


@dataclass(frozen=True)
class Thinking:
    """How a family marks what a model thinks before it answers; `dropped` are marks around what it says."""

    opening: str
    closing: str
    dropped: tuple[str, ...] = ()

    @property
    def anywhere(self) -> bool:
        """Reasoning may come again after text."""
        return bool(self.dropped)


def _grammar(row: Mapping[str, Any]) -> Grammar:
    patterns = {name: re.compile(row[name], re.DOTALL) for name in ("head", "tail", "pair") if name in row}
    return Grammar(**{**row, **patterns, "arguments": ArgumentKind[row.get("arguments", "JSON")]})


_TABLE = read_table("areal.gateway.templates", "forms.yaml")
FORMS: Mapping[str, Grammar] = {name: _grammar(row) for name, row in _TABLE["forms"].items()}
"""The forms that are known here; the order in which they are tried."""
THINKING = tuple(Thinking(**tuple_fields(row)) for row in _TABLE["thinking"])


_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args")
_IDS = ("id", "tool_call_id")
_GAP = re.compile(r"[\s;,]*")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_BARE = re.compile(r"[^,\[\]{}<>:]+")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


@dataclass(frozen=True)
class WrittenToolCall:
    """A call as the model wrote it: the arguments as JSON, and the id if it gave one."""

    name: str
    arguments: str
    id: str = ""


class ClosingFinder:
    """Finds where a growing block closes: not within a string of its arguments."""

    def __init__(self, grammar: Grammar) -> None:
        self._closing = grammar.closing
        quotes = {ArgumentKind.JSON: ('"',), ArgumentKind.PYTHON: ('"', "'"), ArgumentKind.GEMMA: (QUOTE,)}
        self._quotes = quotes.get(grammar.arguments, ())
        marks = [re.escape(mark) for mark in (grammar.closing, *self._quotes)]
        escapes = [r"\\."] if self._quotes and QUOTE not in self._quotes else []
        self._marks = re.compile("|".join([*escapes, *marks]), re.DOTALL)
        self._longest = max(len(mark) for mark in ("\\.", self._closing, *self._quotes))
        self._place, self._quote = 0, ""

    def find(self, text: str, *, end: bool) -> int:
        """Start of the closing in a text that only grows from call to call; −1 as long as it isn't there."""
        if not self._closing:
            return -1
        limit = len(text) if end else len(text) - self._longest + 1  # a mark that may still grow is looked at later
        while found := self._marks.search(text, self._place):
            if found.start() >= limit and found[0] != self._closing:
                break
            if (mark := found[0]) == self._closing and not self._quote:
                return found.start()
            if mark == self._quote:
                self._quote = ""
            elif mark in self._quotes and not self._quote:
                self._quote = mark
            self._place = found.end()
        else:
            self._place = max(self._place, limit)
        return -1


def calls_in(body: str, grammar: Grammar, names: Collection[str]) -> list[WrittenToolCall]:
    """The calls that a block is; none when anything else is in it, or a tool that isn't among `names`.

    `names` may map each name to the schema of its parameters, by which values between tags are typed.
    """
    if _too_deep(body):
        return []
    try:
        body.encode()
        calls = list(_READERS[grammar.arguments](body, grammar, names))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return calls if all(call.name in names for call in calls) else []


def _json(body: str, grammar: Grammar, names: Collection[str]) -> Iterator[WrittenToolCall]:
    place = _skip(body, 0)
    while place < len(body):
        if grammar.head is None:
            end = first_json(body, place)[1]
            yield from _objects(body[place:end])
        else:
            head, place = _headed(body, place, grammar)
            end = first_json(body, place)[1]
            yield WrittenToolCall(head["name"], _object_text(body[place:end]), head.get("id") or "")
            end = _tail_end(body, end, grammar)
        place = _skip(body, end)


def _objects(text: str) -> Iterator[WrittenToolCall]:
    """The calls of a JSON value: an object, or a list of them."""
    if text.startswith("["):
        for inner in _items(text):
            yield from _objects(inner)
        return
    found = members(text)
    name = next((found[key][0] for key in _NAMES if key in found), None)
    arguments = next((found[key][1] for key in _ARGUMENTS if key in found), "{}")
    if name is None and len(found) == 1:  # {"name": {arguments}}
        ((name, (_, arguments)),) = found.items()
    if not isinstance(name, str):
        raise ValueError("no name")
    given = next((found[key][0] for key in _IDS if key in found), "")
    yield WrittenToolCall(name, _object_text(arguments), str(given or ""))


def _tags(body: str, grammar: Grammar, names: Collection[str]) -> Iterator[WrittenToolCall]:
    assert grammar.pair is not None
    place = _skip(body, 0)
    while place < len(body):
        head, place = _headed(body, place, grammar)
        schema = names.get(head["name"], {}) if isinstance(names, Mapping) else {}
        known = schema.get("properties") if isinstance(schema, Mapping) else None
        arguments: dict[str, Any] = {}
        while pair := grammar.pair.match(body, place):
            given = pair.groupdict()
            kind = {"type": "string"} if given.get("string") == "true" else (known or {}).get(given["key"], {})
            arguments[given["key"].strip()] = _typed(given["value"], kind)
            place = pair.end()
        yield WrittenToolCall(head["name"].strip(), _dumped(arguments))
        place = _skip(body, _tail_end(body, place, grammar))


def _python(body: str, grammar: Grammar, names: Collection[str]) -> Iterator[WrittenToolCall]:
    lines = _STRING.sub(lambda found: found[0].replace("\n", "\\n"), body.strip())  # templates write texts as they are
    for statement in ast.parse(lines).body:
        if not isinstance(statement, ast.Expr):
            raise ValueError("no call")
        value = statement.value
        for call in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            if not isinstance(call, ast.Call) or call.args or any(given.arg is None for given in call.keywords):
                raise ValueError("no call")
            arguments = {str(given.arg): _literal(given.value) for given in call.keywords}
            yield WrittenToolCall(ast.unparse(call.func), _dumped(arguments))


def _gemma(body: str, grammar: Grammar, names: Collection[str]) -> Iterator[WrittenToolCall]:
    place = _skip(body, 0)
    while place < len(body):
        head, place = _headed(body, place, grammar)
        value, place = _gemma_value(body, place)
        if not isinstance(value, dict):
            raise ValueError("no arguments")
        yield WrittenToolCall(head["name"], _dumped(value))
        place = _skip(body, place)


_READERS = {
    ArgumentKind.JSON: _json,
    ArgumentKind.TAGS: _tags,
    ArgumentKind.PYTHON: _python,
    ArgumentKind.GEMMA: _gemma,
}


def _gemma_value(text: str, place: int) -> tuple[Any, int]:
    """A value and where it ends: {key:value,…}, […], text between quotes, a number or a constant."""
    if text.startswith(QUOTE, place):
        end = text.index(QUOTE, place + len(QUOTE))
        return text[place + len(QUOTE) : end], end + len(QUOTE)
    if text[place : place + 1] in ("{", "["):
        closing = "}" if text[place] == "{" else "]"
        found: list[tuple[str, Any]] = []
        place = _skip(text, place + 1)
        while not text.startswith(closing, place):
            key = ""
            if closing == "}":
                if text.startswith(QUOTE, place):
                    key, place = _gemma_value(text, place)
                else:
                    if (named := re.compile(r"[^:{}\[\],]+").match(text, place)) is None:
                        raise ValueError("no key")
                    key, place = named[0].strip(), named.end()
                if not text.startswith(":", place):
                    raise ValueError("no value")
                place += 1
            value, place = _gemma_value(text, place)
            found.append((key, value))
            place = _skip(text, place)
        return (dict(found) if closing == "}" else [value for _, value in found]), place + 1
    if (bare := _BARE.match(text, place)) is None:
        raise ValueError("no value")
    word = bare[0].strip()
    return (_CONSTANTS[word] if word in _CONSTANTS else read_json(word)), bare.end()


def _headed(body: str, place: int, grammar: Grammar) -> tuple[dict[str, str], int]:
    assert grammar.head is not None
    head = grammar.head.match(body, place)
    if head is None:
        raise ValueError("no call")
    return head.groupdict(), head.end()


def _tail_end(body: str, place: int, grammar: Grammar) -> int:
    if (tail := grammar.tail.match(body, place)) is None:
        raise ValueError("the call doesn't end")
    return tail.end()


def _skip(text: str, place: int) -> int:
    """Past white space and what separates calls."""
    gap = _GAP.match(text, place)
    return place if gap is None else gap.end()


def _object_text(text: str) -> str:
    """Arguments as the model wrote them: an object, or a text that is one."""
    value = read_json(text)
    if isinstance(value, str):
        text, value = value or "{}", read_json(value or "{}")
    if not isinstance(value, dict):
        raise ValueError("arguments are an object")
    return text.strip()


def _items(text: str) -> Iterator[str]:
    """The values of a JSON list as written."""
    place = _skip(text, 1)
    while not text.startswith("]", place):
        end = first_json(text, place)[1]
        yield text[place:end]
        place = _skip(text, end)


def _typed(text: str, schema: Any) -> Any:
    """A value between tags, by the type that the tool's schema gives it; JSON or else text where it gives none."""
    kinds = _kinds(schema)
    if "string" in kinds:
        return None if text == "null" and "null" in kinds else text
    if text.strip() in _CONSTANTS:
        return _CONSTANTS[text.strip()]
    try:
        return read_json(text)
    except ValueError:
        pass
    if kinds:  # written by Python's str()
        try:
            return _literal(ast.parse(text.strip(), mode="eval").body)
        except (ValueError, SyntaxError):
            pass
    return text


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    given = schema.get("type")
    kinds = {given} if isinstance(given, str) else set(given or ())
    for inner in (*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())):
        kinds |= _kinds(inner)
    choices = schema.get("enum")
    return kinds or ({"string"} if choices and all(isinstance(one, str) for one in choices) else set())


def _literal(node: ast.expr) -> Any:
    """A Python literal; JSON's own constants are names there."""
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(inner) for inner in node.elts]
    if isinstance(node, ast.Dict):
        return {str(ast.literal_eval(key)): _literal(value) for key, value in zip(node.keys, node.values, strict=True)
                if key is not None}  # fmt: skip
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError("no value of JSON")
    return value


def _dumped(arguments: Mapping[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


def _too_deep(text: str) -> bool:
    """Depth check: brackets stand in more than so many others."""
    depth = 0
    for bracket in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{(]|[\]})]', text, re.DOTALL):
        if bracket[0] in "[{(":
            depth += 1
            if depth > MOST_DEPTH:
                return True
        elif bracket[0] in "]})":
            depth = max(0, depth - 1)
    return False
