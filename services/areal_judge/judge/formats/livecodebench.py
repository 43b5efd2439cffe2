"""LiveCodeBench: `public_test_cases` and `private_test_cases`, each a list of {input, output, testtype}.

Private cases may be packed: base64 of zlib of JSON. The published files put a pickle of that JSON text inside: it is
decoded as a text, never unpickled, and every other pickle is refused, because it could run anything. Standard output
is compared as LiveCodeBench does (`lcb_decimal`).
"""

import base64
import binascii
import json
import zlib
from typing import Any

from areal_judge.judge.formats.cases import Pairs, suite_of_pairs
from areal_judge.judge.formats.fields import MAX_TEXT_CHARS, Row, has, limits, mapping, refuse, sequence
from areal_judge.judge.values import Checker, Suite

CASE_S = 6.0  # LiveCodeBench's own limit
_MODULES = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip  # in the grader's order: of one name, the last one stays
_RECURSION = 50_000
PREAMBLE = (
    "".join(f"from {name} import *\n" for name in _MODULES)
    + f"import {', '.join(_MODULES)}\nsys.setrecursionlimit({_RECURSION})\n"
)
"""What LiveCodeBench's grader puts before every program."""
_CONVERT = (
    "where you trust the file, write the column as JSON once: "
    "json.loads(pickle.loads(zlib.decompress(base64.b64decode(value))))"
)
_PROTOCOL, _FRAME, _STOP = 0x80, 0x95, ord(".")
_SIZES = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # opcode of a text → bytes of its length, little-endian
_MEMO = {0x94: 0, ord("q"): 1, ord("r"): 4}  # opcode that remembers what was made → bytes of its place
_HIGHEST_PROTOCOL = 5


def claims(row: Row) -> bool:
    return has(row, "public_test_cases") or has(row, "private_test_cases")


def suite(row: Row) -> Suite:
    cases = [
        _LiveCodeBenchCase(case, f"{name}[{index}]")
        for name in ("public_test_cases", "private_test_cases")
        for index, case in enumerate(unpacked(row.get(name), name))
    ]
    if not cases:
        refuse("public_test_cases", "no cases: every program would pass", "add cases, or drop the row")
    kinds = {case.kind for case in cases}
    if len(kinds) > 1:
        refuse("public_test_cases", "some cases are functional, some are not", "use one testtype in a row")
    return suite_of_pairs(
        Pairs(
            [case.given for case in cases],
            [case.due for case in cases],
            "test_cases",
            _function(row) if kinds == {"functional"} else "",
        ),
        checker=Checker("lcb_decimal", bool_is_int=kinds == {"functional"}),  # the grader compares results with ==
        limits=limits(CASE_S),
        preamble=PREAMBLE,
        numpy=True,
    )


class _LiveCodeBenchCase:
    def __init__(self, value: Any, at: str) -> None:
        if not isinstance(value, dict) or not isinstance(value.get("input"), str):
            refuse(at, "an object with texts input and output is due", "write {input, output, testtype}")
        if not isinstance(value.get("output"), str):
            refuse(f"{at}.output", "no expected output", "give it as a string, or drop the case")
        self.given: str = value["input"]
        self.due: str = value["output"]
        self.kind: str = value.get("testtype") or "stdin"
        if self.kind not in ("stdin", "functional"):
            refuse(f"{at}.testtype", f"{self.kind!r} is unknown", "use stdin or functional")


def _function(row: Row) -> str:
    name = mapping(row.get("metadata") or {}, "metadata").get("func_name") or row.get("fn_name")
    if not isinstance(name, str) or not name:
        refuse("metadata.func_name", "missing: functional cases call it", "give the function's name")
    return name


def unpacked(value: Any, at: str) -> list[Any]:
    """A list of cases from a list, JSON text, or base64 of zlib of JSON or of the pickle of a JSON text.

    Raises DataError for any other pickle.
    """
    if value is None or value == "":
        return []
    if not isinstance(value, str) or value.lstrip()[:1] in ("[", "{", '"'):
        return sequence(value, at)
    try:
        packed = base64.b64decode(value, validate=True)
        reader = zlib.decompressobj()
        content = reader.decompress(packed, MAX_TEXT_CHARS)
    except (binascii.Error, zlib.error, ValueError) as error:
        refuse(at, f"neither JSON nor base64 of zlib: {error}", "write the cases as JSON")
    if reader.unconsumed_tail or not reader.eof:
        refuse(at, f"unpacks to more than {MAX_TEXT_CHARS >> 20} MiB, or is cut off", "drop the largest cases")
    text: bytes | str | None = content
    # Pickles of protocol 2 and above start with 0x80; all end with a full stop, which no JSON does.
    if (content[:1] == b"\x80" or content[-1:] == b".") and (text := pickled_text(content)) is None:
        refuse(at, "holds a pickle of more than a text, which could run anything here", _CONVERT)
    try:
        found = json.loads(text or "")
        return sequence(json.loads(found) if isinstance(found, str) else found, at)
    except (ValueError, RecursionError) as error:
        refuse(at, f"unpacks to no JSON: {str(error) or 'nested too deeply'}", "write the cases as JSON")


def pickled_text(content: bytes) -> str | None:
    """The text of a pickle of one text, of protocol 2 or above; None for any other pickle. Nothing is ever unpickled.

    Of the pickle language only the opcodes that such a pickle is made of are known here (protocol marker, frame, text,
    memo, stop): none of them can name or call anything.
    """
    if len(content) < 3 or content[0] != _PROTOCOL or not 2 <= content[1] <= _HIGHEST_PROTOCOL:
        return None
    found: str | None = None
    at = 2
    while at < len(content):
        opcode, at = content[at], at + 1
        if opcode == _STOP:
            return found if at == len(content) else None
        if opcode == _FRAME:
            at += 8
        elif opcode in _MEMO and found is not None:
            at += _MEMO[opcode]
        elif opcode in _SIZES and found is None:
            begin = at + _SIZES[opcode]
            at = begin + int.from_bytes(content[begin - _SIZES[opcode] : begin], "little")
            found = _decoded(content[begin:at]) if at <= len(content) else None
        else:
            return None
    return None


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None
