"""AReaL's strings for backends and GPUs: `sglang.d12p1t1+d4p1t1`, `sglang:d4p1t2`, `fsdp:d4t2c1`. Pure."""

import re
from dataclasses import dataclass

from areal.errors import ConfigError

ENGINES = ("sglang", "vllm")
_TRAINERS = ("fsdp", "megatron", "archon")
_PART = re.compile(r"(?:(?P<backend>[a-z]+)(?:\[(?P<name>[\w-]+)\])?[.:])?(?P<dims>(?:[dtpce]\d+)+|\(.*\))")
_HYBRID = re.compile(r"\(attn:(?P<attn>(?:[dtpce]\d+)+)\|ffn:(?P<ffn>(?:[dtpce]\d+)+)\)")


@dataclass(frozen=True)
class Part:
    """One component: `dims` are d (data), t (tensor), p (pipeline), c (context), e (experts)."""

    backend: str
    dims: dict[str, int]
    colocated: bool = False  # on the GPUs of the part before
    hybrid: bool = False  # attention and experts are split differently

    @property
    def world(self) -> int:
        """Its GPUs."""
        return self.size("d") * self.size("t") * self.size("p") * self.size("c")

    @property
    def serves(self) -> bool:
        """True for a generation engine."""
        return self.backend in ENGINES

    @property
    def beyond(self) -> str:
        """Splits of it that there are none of here, in words."""
        found = [f"{self.size(name)} {what}" for name, what in (("p", "pipeline stages"), ("e", "expert groups"))
                 if self.size(name) > 1]  # fmt: skip
        return " and ".join([*found, *(["attention and experts split apart"] if self.hybrid else [])])

    def size(self, name: str) -> int:
        """A dimension; 1 where the string has none."""
        return self.dims.get(name, 1)


def parse_allocation(text: str) -> list[Part]:
    """The parts of a string, in order. Dimensions without a backend are a trainer's. Raises ConfigError."""
    parts: list[Part] = []
    pieces = re.findall(r"(^|[+|])((?:[^+|(]|\([^)]*\))+)", text.replace(" ", ""))
    if "".join(joint + piece for joint, piece in pieces) != text.replace(" ", "") or not pieces:
        raise _wrong(text, text)
    for joint, piece in pieces:
        found = _PART.fullmatch(piece)
        backend = (found["backend"] or "fsdp") if found else ""
        hybrid = _HYBRID.fullmatch(found["dims"]) if found else None
        if found is None or backend not in (*ENGINES, *_TRAINERS) or (found["dims"].startswith("(") and not hybrid):
            raise _wrong(text, piece)
        dims = _dims(hybrid["attn"] if hybrid else found["dims"], text)
        experts = _dims(hybrid["ffn"], text) if hybrid else {}
        parts.append(Part(backend, {**experts, **dims}, joint == "|", hybrid is not None))
    return parts


def _dims(text: str, whole: str) -> dict[str, int]:
    found = re.findall(r"([dtpce])(\d+)", text)
    if len({name for name, _ in found}) < len(found) or any(int(size) < 1 for _, size in found):
        raise _wrong(whole, text)
    return {name: int(size) for name, size in found}


def _wrong(text: str, piece: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is no allocation: {piece!r} is not understood",
        fix="Write backend:dN…, each of d, t, p, c, e once, such as sglang:d4t2 or sglang.d12p1t1+d4p1t1.",
    )
