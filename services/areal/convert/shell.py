"""Shell scripts as far as launch scripts need them: assignments, arrays, here-documents, `if`, and the commands left.

Reads, never runs: a loop's variable and what the environment would set stay unknown, marked by name in the values that
they reach, and so do commands in a substitution but those that name a folder of the script (`_PATH`).
"""

import ast
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import Any

from areal.convert.draft import UNSET

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\\\n)|(?P<comment>(?<![^\s;])\#[^\n]*)|(?P<heredoc><<-?\s*(['"]?)(?P<mark>\w+)\4)"""
    r"""|(?P<op>\d*>>?&?|<|&&|\|\||;;|[;\n|&()])"""
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[\w+\])?(\+?)=(.*)", re.DOTALL)
_ARITHMETIC = re.compile(r"[\d\s+\-*/%()]+")
_PATH = re.compile(
    r"\$\(\s*(?:(dirname|basename|realpath|readlink\s+-f)\s+(?:--\s+)?([^|;&<>]+?)"
    r"|cd\s+(?:--\s+)?([^|;&<>]+?)\s*(?:(?:\d?>|&>)\s*(?:/dev/null|&1)\s*)*&&\s*pwd(?:\s+-P)?)\s*\)",
    re.DOTALL,
)
_DECLARES = ("export", "local", "declare", "readonly", "typeset")
_NUMBERS = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip
SIGNS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_HERE = "\x01"
_DEEPEST, _MOST = 8, 500  # functions, scripts and texts inside each other, and in all


def unset(name: str) -> str:
    """Mark that stands in a value for something that the script doesn't say."""
    return f"{UNSET}{name}{UNSET}"


def read_commands(text: str, given: Mapping[str, str] | None = None) -> dict[bool | None, list[list[str]]]:
    """The words of every command: those that are reached (True), that may be (None), and that aren't (False).

    `given` are variables from outside.
    """
    shell = _Shell(dict(given or {}))
    shell.run(list(_tokens(text.replace("\r\n", "\n"))))
    return shell.commands


def _tokens(text: str) -> Iterator[str]:
    """Raw words with their quotes, and operators; a here-document is one word behind its mark."""
    k, word, bodies = 0, "", list[str]()
    while k < len(text):
        found = _TOKEN.match(text, k)
        if found is None or (word and (found["comment"] or (found["op"] == "(" and word[-1] == "="))):
            end = _end_of_part(text, k)
            word, k = word + text[k:end], end
            continue
        if found["op"] and not found["op"].isspace() and found["op"][0].isdigit() and word:
            word, k = word + text[k], k + 1
            continue
        k = found.end()
        if word:
            yield word
            word = ""
        if found["heredoc"]:
            bodies.append(found["mark"])
        elif found["op"] == "\n" and bodies:
            for mark in bodies:
                close = re.compile(rf"^[ \t]*{mark}[ \t]*$", re.MULTILINE).search(text, k)
                end = close.start() if close else len(text)
                yield _HERE + text[k:end]
                k = close.end() if close else len(text)
            bodies = []
            yield "\n"
        elif found["op"]:
            yield found["op"]
    if word:
        yield word


def _end_of_part(text: str, k: int) -> int:
    """End of a part of a word: a quoted text, an expansion, an array's list, or one character."""
    if text[k] == "'":
        return text.find("'", k + 1) + 1 or len(text)
    if text[k] == '"':
        k += 1
        while k < len(text) and text[k] != '"':
            k = _end_of_part(text, k) if text[k] in "\\$" else k + 1
        return k + 1
    if text[k] == "\\":
        return min(k + 2, len(text))
    if text[k] == UNSET:
        return text.find(UNSET, k + 1) + 1 or len(text)
    for opening, closing in (("$((", "))"), ("$(", ")"), ("${", "}"), ("(", ")")):
        if text.startswith(opening, k):
            return _closing(text, k, opening[-1], closing)
    return k + 1


def _closing(text: str, k: int, opening: str, closing: str) -> int:
    depth = 0
    while k < len(text):
        if text[k] in "'\"\\" and opening == "(" and closing == ")":
            k = _end_of_part(text, k)
            continue
        depth += (text[k] == opening) - (text[k] == closing[-1])
        k += 1
        if not depth and text[k - 1] == closing[-1]:
            return k
    return len(text)


@dataclass
class _Shell:
    """Variables, and the commands so far."""

    variables: dict[str, str | list[str]]
    commands: dict[bool | None, list[list[str]]] = field(default_factory=lambda: {True: [], None: [], False: []})
    _branches: list[list[bool | None]] = field(default_factory=list)  # [taken here (None: unknown), some branch was]
    _bodies: dict[str, list[list[str]]] = field(default_factory=dict)  # the lines of functions
    _open: list[str] = field(default_factory=list)  # functions that are being defined, and groups in them
    _cases: list[str] = field(default_factory=list)  # what each open `case` looks at
    _patterns: list[str] = field(default_factory=list)  # of the branch that begins
    _at_pattern: bool = False
    _depth: int = 0
    _followed: int = 0

    def run(self, tokens: list[str]) -> None:
        line: list[str] = []
        for token in [*tokens, "\n"]:
            if token not in ("\n", ";", ";;", "&&", "||", "&", "|"):
                line.append(token)
                continue
            line += [token] if token == ";;" else []
            if line and not (token in ("&&", "||") and line[0] in ("if", "elif", "[[", "[")):
                self._statement(line)
                line = []
            elif line:
                line.append(token)

    def _statement(self, line: list[str]) -> None:
        if not line:
            return
        if line[0] == "function" or line[1:3] == ["(", ")"]:
            self._open.append(line[line[0] == "function"])
            self._bodies[self._open[0]] = []
            line = line[line.index("{") :] if "{" in line else []
        if self._open:
            body = self._bodies[self._open[0]]
            if line[:1] == ["}"]:
                self._open.pop()
            elif line:
                self._open += [""] if line[0] == "{" and body else []
                body.append(line)
            return
        ends, begins = line[-1] == ";;", self._at_pattern
        self._at_pattern, line = ends, line[:-1] if ends else line
        if begins and line and line[0] != "esac":
            patterns, closed, rest = line, ")" in line, list[str]()
            if closed:
                patterns, rest = line[: line.index(")")], line[line.index(")") + 1 :]
            self._patterns += [self._one(word) for word in patterns if word != "("]
            self._at_pattern = ends or not closed  # `a | b)` comes in two parts
            if closed:
                self._choose()
            line = rest
        while line and line[0] in ("then", "do", "{", "}", "!"):
            line = line[1:]
        if not line:
            return
        head = line[0]
        if head in ("elif", "else") and not self._branches:
            return
        if head in ("if", "elif"):
            if head == "if":
                self._branches.append([False, False])
            _, done = self._branches[-1]
            taken = False if done else self._holds(line[1:])
            self._branches[-1] = [taken, True if taken else (None if taken is None or done is None else done)]
        elif head == "else":
            _, done = self._branches[-1]
            self._branches[-1] = [None if done is None else not done, True]
            self._statement(line[1:])
        elif head == "case":
            self._cases.append(next(iter(self.expand(line[1])), "") if len(line) > 1 else "")
            self._branches.append([False, False])
            self._at_pattern = True
            self._statement([*line[3:], *([";;"] if ends else [])])  # its first branch may stand on the same line
        elif head in ("for", "while", "until", "select"):
            self._branches.append([None, None])
            if head == "for" and len(line) > 1:
                self.variables[line[1]] = unset(f"${line[1]}")
        elif head in ("fi", "done", "esac"):
            if self._branches:
                self._branches.pop()
            if head == "esac" and self._cases:
                self._cases.pop()
        else:
            open_branches = [each for each, _ in self._branches]
            self._simple(line, False if False in open_branches else None if None in open_branches else True)

    def _choose(self) -> None:
        """Take the branch of a `case` behind its patterns, leave it, or neither."""
        subject, patterns, self._patterns = (self._cases or [""])[-1], self._patterns, []
        if not self._branches:
            return
        fits = None if UNSET in subject else any(re.fullmatch(translate(each), subject) for each in patterns)
        _, done = self._branches[-1]
        self._branches[-1] = [False if done else fits, True if fits else None if None in (fits, done) else done]

    def _holds(self, words: list[str]) -> bool | None:
        """Truth of a test; None where that can't be said without running something."""
        for joint, decided in (("||", True), ("&&", False)):
            if joint in words:
                k = words.index(joint)
                both = self._holds(words[:k]), self._holds(words[k + 1 :])
                return decided if decided in both else None if None in both else not decided
        if not words or words[0] not in ("[", "[["):
            return None
        inner = [self._one(word) for word in words[1:] if word not in ("]", "]]")]
        if inner[:1] == ["!"]:
            found = self._holds(["[", *words[2:]])
            return None if found is None else not found
        match inner:
            case ["-z" | "-n" as kind, text]:
                return (kind == "-z") == (not text)
            case [left, "==" | "=" | "!=" as kind, right]:
                return (kind != "!=") == (re.fullmatch(translate(right), left) is not None)
            case [left, kind, right] if kind in _NUMBERS and left.isdigit() and right.isdigit():
                return bool(_NUMBERS[kind](int(left), int(right)))
        return None

    def _one(self, word: str) -> str:
        """A word of a test: what nobody set is empty there."""
        return re.sub(f"{UNSET}[^{UNSET}]*{UNSET}", "", "".join(self.expand(word)[:1]))

    def _simple(self, line: list[str], reached: bool | None) -> None:
        if line[0] == "read" and line[-1].startswith(_HERE):
            self._assign(line[-2], "", line[-1][1:], reached, here=True)
            return
        words = line[1:] if line[0] in _DECLARES else line
        while words and (found := _ASSIGNMENT.fullmatch(words[0])) and not words[0].startswith("-"):
            self._assign(found[1], found[3], found[4], reached)
            words = words[1:]
        if words and line[0] not in _DECLARES:
            self._command([text for word in _until_redirected(words) for text in self.expand(word)], reached)

    def _command(self, words: list[str], reached: bool | None) -> None:
        """Keep a command; read a function's lines instead, another script's, and the text that a shell is given."""
        body = self._bodies.get(words[0]) if words else None
        inner = " ".join(words[1:]) if words[:1] == ["eval"] else ""
        inner = next((text for shell, c, text in zip(words, words[1:], words[2:], strict=False)
                      if c in ("-c", "-lc") and re.fullmatch(r"(.*/)?(ba|z|da)?sh", shell)), inner)  # fmt: skip
        at, script = next(((k, path) for k, word in enumerate(words[:3]) if (path := self._beside(word))), (0, None))
        if self._depth == _DEEPEST or self._followed == _MOST or not (body or inner or script):
            self.commands[reached].append(words)
            if words[:1] == ["shift"]:
                self._give(self._items("@")[int(words[1]) if words[1:] and words[1].isdigit() else 1 :])
            return
        self._depth, self._followed = self._depth + 1, self._followed + 1
        outer = {name: value for name, value in self.variables.items() if _positional(name)}
        if body or script:
            self._give(words[at + 1 :])
        if body:
            for line in body:
                self._statement(line)
        elif script is not None:
            self.variables |= {"0": str(script), "BASH_SOURCE": str(script)}
            inner = script.read_text(errors="replace")
        self.run(list(_tokens(inner)))
        self.variables = {name: value for name, value in self.variables.items() if not _positional(name)} | outer
        self._depth -= 1

    def _beside(self, word: str) -> Path | None:
        """Another script that a command starts, where it is here."""
        own = Path(str(self.variables.get("0", ".")))
        named = re.fullmatch(r"\S{1,200}\.sh", word)
        places = (Path(word), own.parent / word, own.parent / Path(word).name) if named else ()
        return next(
            (
                path
                for path in places
                if path.is_file() and os.access(path, os.R_OK) and path.resolve() != own.resolve()
            ),
            None,
        )

    def _give(self, words: list[str]) -> None:
        """Set `$@` and `$1`, `$2`, …"""
        others = {k: v for k, v in self.variables.items() if k in ("0", "BASH_SOURCE") or not _positional(k)}
        self.variables = others | {"@": words} | {str(k): word for k, word in enumerate(words, 1)}

    def _assign(self, name: str, plus: str, raw: str, reached: bool | None, *, here: bool = False) -> None:
        value: str | list[str]
        if reached is False:
            return
        if reached is None:
            value = unset(f"${name}")
        elif here:
            value = self._quoted(raw)
        elif raw.startswith("("):
            value = [text for word in _tokens(raw[1:-1]) if word != "\n" for text in self.expand(word)]
        else:
            value = "".join(self.expand(raw, split=False))
        old = self.variables.get(name, "")
        if plus and isinstance(value, list):
            value = [*(old if isinstance(old, list) else [old] if old else []), *value]
        elif plus and isinstance(old, str):
            value = f"{old}{value}"
        self.variables[name] = value

    def expand(self, raw: str, *, split: bool = True) -> list[str]:
        """A raw word as the shell would pass it on: none, one or several words."""
        words, open_word, k = [""], False, 0
        while k < len(raw):
            end = _end_of_part(raw, k)
            part = raw[k:end]
            k = end
            if part[0] == "'":
                words[-1] += part[1:-1]
                open_word = True
            elif part[0] == '"' or part[0] == "\\":
                inner = part[1:-1] if part[0] == '"' else ""
                if (array := re.fullmatch(r"\$\{(\w+)\[@\]\}", inner)) or inner == "$@":
                    items = self._items(array[1] if array else "@")
                    words[-1:] = [words[-1] + items[0], *items[1:]] if items else words[-1:]
                    open_word = open_word or bool(items)
                else:
                    words[-1] += self._quoted(inner) if inner or part[0] == '"' else part[1:].replace("\n", "")
                    open_word = True
            elif part[0] == "$" or part == "`":
                if part == "$" and k < len(raw) and (name := re.match(r"\w+|[@#*?$!]", raw[k:])):
                    part, k = part + name[0], k + name.end()
                array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", part)
                listed = self._items(array[1]) if array else self._items("@") if part in ("$@", "$*") else None
                text = self._value(part) if listed is None else " ".join(listed)
                pieces = text.split() if split and UNSET not in text else [text]
                if not pieces:
                    continue
                if split and text[:1].isspace() and words[-1]:
                    words.append("")
                words[-1] += pieces[0]
                words += pieces[1:]
                open_word = True
            else:
                words[-1] += part
                open_word = True
        return words if open_word or words[0] else []

    def _quoted(self, text: str) -> str:
        """The inside of double quotes."""
        made, k = "", 0
        while k < len(text):
            if text[k] == "\\" and k + 1 < len(text):
                made += "" if text[k + 1] == "\n" else text[k + 1] if text[k + 1] in '$`"\\' else text[k : k + 2]
                k += 2
            elif text[k] == UNSET:
                end = _end_of_part(text, k)
                made, k = made + text[k:end], end
            elif text[k] == "$":
                end = _end_of_part(text, k)
                if end == k + 1 and (name := re.match(r"\w+|[@#*?$!]", text[end:])):
                    end += name.end()
                made, k = made + self._value(text[k:end]), end
            else:
                made, k = made + text[k], k + 1
        return made

    def _items(self, name: str) -> list[str]:
        value = self.variables.get(name, [])
        return value if isinstance(value, list) else [value]

    def _value(self, part: str) -> str:
        """Value of one expansion."""
        if part.startswith("$(("):
            return self._sum(part[3:-2])
        if (sums := re.fullmatch(r"\$\(\s*expr\s+(.*?)\s*\)", part)) is not None:
            return self._sum(sums[1].replace("\\*", "*"))
        if part == "$(pwd)":
            part = "$PWD"
        if part.startswith("$(") or part == "`":
            return self._path(part) or unset(part)
        name = part[1:].strip("{}")
        if (found := self._variable(name)) is not None:
            return found
        match = re.fullmatch(r"(\w+)(:?[-=?+]|//?|##?|%%?)(.*)", part[2:-1], re.DOTALL) if part[1:2] == "{" else None
        if match is None:
            return "$" if part == "$" else unset(f"${name}")
        name, how, rest = match.groups()
        value = self._variable(name)
        if how[-1] in "-=?":
            empty = value is None or (how[0] == ":" and value == "")
            return self._quoted(rest.strip("\"'")) if empty and how[-1] != "?" else value or unset(f"${name}")
        if how[-1] == "+":
            return self._quoted(rest) if value else ""
        if value is None:
            return unset(f"${name}")
        if how[0] == "/":
            old, _, new = rest.partition("/")
            return value.replace(self._quoted(old), self._quoted(new), -1 if how == "//" else 1)
        return _trimmed(value, how, self._quoted(rest))

    def _path(self, part: str) -> str:
        """What a command makes of a path alone; empty where it does something else, or the path isn't known."""
        if (found := _PATH.fullmatch(part)) is None:
            return ""
        how, of, folder = found.groups()
        (path,) = self.expand(of or folder, split=False) or [UNSET]
        if UNSET in path:
            return ""
        if how in ("dirname", "basename"):
            return os.path.basename(path) if how == "basename" else os.path.dirname(path) or "."
        return path if how else os.path.abspath(path)

    def _variable(self, name: str) -> str | None:
        if name in ("@", "*"):
            return " ".join(self._items("@"))
        if name == "#":
            return str(len(self._items("@")))
        if (index := re.fullmatch(r"(\w+)\[(\d+)\]", name)) is not None:
            items = self._items(index[1])
            return items[int(index[2])] if int(index[2]) < len(items) else None
        if (value := self.variables.get(name)) is None and name in ("HOME", "PWD"):
            return os.environ.get(name)
        return " ".join(value) if isinstance(value, list) else value

    def _sum(self, text: str) -> str:
        """Arithmetic over whole numbers."""
        known = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: self._value(f"${name[1]}"), text)
        if not _ARITHMETIC.fullmatch(known):
            return known if UNSET in known else unset(f"$(({text}))")
        try:
            return str(_calculated(ast.parse(known.strip().replace("/", "//"), mode="eval").body))
        except (ArithmeticError, SyntaxError, ValueError):
            return unset(f"$(({text}))")


def _calculated(node: ast.expr) -> int:
    """A sum of whole numbers. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_calculated(inner)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
            return int(SIGNS[type(sign)](_calculated(left), _calculated(right)))
    raise ValueError


def _positional(name: str) -> bool:
    return name in ("@", "BASH_SOURCE") or name.isdigit()


def _until_redirected(words: list[str]) -> Iterator[str]:
    """The words without redirections and here-documents."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif re.fullmatch(r"\d*>>?&?|<", word):
            skip = True
        elif not word.startswith(_HERE) and word not in ("(", ")"):
            yield word


def _trimmed(value: str, how: str, pattern: str) -> str:
    """`${value#pattern}` and its kind."""
    whole = re.compile(translate(pattern))
    cuts = range(len(value) + 1)
    if how[0] == "#":
        fits = [k for k in cuts if whole.fullmatch(value[:k])]
        return value[(fits[-1] if how == "##" else fits[0]) :] if fits else value
    fits = [k for k in cuts if whole.fullmatch(value[k:])]
    return value[: (fits[0] if how == "%%" else fits[-1])] if fits else value
