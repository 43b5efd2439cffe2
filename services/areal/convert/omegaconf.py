"""OmegaConf's YAML: `${a.b}` resolved, nested and escaped, without running any resolver. Pure.

Hydra's `defaults` list composes files of an installed package: refused, with what to do.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal.convert.draft import UNSET
from areal.errors import ConfigError
from areal.yaml_file.document import parse_value

_DEEPEST = 32  # interpolations inside each other


def resolved(values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The same tree with every interpolation replaced. Raises ConfigError for a circle.

    One that leads nowhere is marked: programs have defaults that their files don't say.
    """
    if "defaults" in values:
        raise ConfigError(
            f"{file}: `defaults` composes files of a Python package, which are not here",
            fix="Write the composed configuration out: add `--cfg job --resolve` to the command, and convert that.",
        )
    return {name: _resolve(value, values, (str(name),), file, 0) for name, value in values.items()}


def _resolve(value: Any, root: Mapping[str, Any], place: tuple[str, ...], file: Path, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _resolve(inner, root, (*place, str(name)), file, depth) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, root, (*place, str(k)), file, depth) for k, inner in enumerate(value)]
    if value == "???":  # a value that must be given
        return f"{UNSET}???{UNSET}"
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > _DEEPEST:
        raise ConfigError(f"{file}: {'.'.join(place)} refers to itself: {value}", fix="Break the circle there.")
    parts = _parts(value, root, place, file, depth)
    return parts[0] if len(parts) == 1 else "".join("" if part is None else _text(part) for part in parts)


def _parts(text: str, root: Mapping[str, Any], place: tuple[str, ...], file: Path, depth: int) -> list[Any]:
    """Literal texts and values of a string, in order. A backslash before `${` makes it literal."""
    parts: list[Any] = []
    literal, k = "", 0
    while k < len(text):
        if text.startswith("\\${", k) and not text.startswith("\\\\${", k - 1):
            literal, k = literal + "${", k + 3
        elif text.startswith("\\\\${", k):
            literal, k = literal + "\\", k + 2
        elif text.startswith("${", k):
            end = _closing(text, k, file, place)
            if literal:
                parts.append(literal)
            inner = _resolve(text[k + 2 : end], root, place, file, depth + 1)
            parts.append(_lookup(str(inner).strip(), root, place, file, depth))
            literal, k = "", end + 1
        else:
            literal, k = literal + text[k], k + 1
    return [*parts, literal] if literal or not parts else parts


def _closing(text: str, start: int, file: Path, place: tuple[str, ...]) -> int:
    depth, k = 0, start
    while k < len(text):
        depth += text.startswith("${", k)
        if text[k] == "}":
            depth -= 1
            if not depth:
                return k
        k += 1
    raise ConfigError(f"{file}: {'.'.join(place)}: {text!r} has no closing brace", fix="Close the interpolation there.")


def _lookup(path: str, root: Mapping[str, Any], place: tuple[str, ...], file: Path, depth: int) -> Any:
    resolver, colon, rest = path.partition(":")
    fallback: tuple[Any, ...] = ()
    if colon:
        if resolver != "oc.select":
            raise ConfigError(
                f"{file}: {'.'.join(place)}: the resolver {resolver!r} runs code, which is not done here",
                fix=f"Write its value: areal convert {file} {'.'.join(place)}=…",
            )
        path, comma, other = rest.partition(",")
        fallback = (parse_value(other.strip()),) if comma else (None,)
    dots = len(path) - len(path.lstrip("."))
    base = place[: len(place) - dots] if dots else ()
    keys = [*base, *path.strip().strip(".").replace("]", "").replace("[", ".").split(".")]
    value: Any = root
    for key in keys:
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError):
            if fallback:
                return fallback[0]
            return f"{UNSET}${{{'.'.join(keys)}}}{UNSET}"  # a default of the program's own, or a slip
    return _resolve(value, root, tuple(keys), file, depth + 1)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
