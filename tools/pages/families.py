"""The block of docs/models.md with the compared model families: their tests, and the engines that serve them."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import metadata, util
from pathlib import Path

from areal.admit.memory.shape import FAMILIES as PLANNED
from areal.spec.model_families import COMPARED, EMBEDDED, EXPERTS, HYBRIDS, VISION, WITHOUT_SCORES, family_cells

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
WINDOWS = "tests/trainer/test_trainer_windows.py"
_BLOCK = re.compile(r"(<!-- families: make docs -->\n).*?(<!-- end of families -->)", re.S)
_ENTRY = re.compile(r"^EntryClass\s*=\s*(\[.*?\]|\w+)", re.S | re.M)


def render(page: Path = PAGE) -> str:
    """The page with its block made anew."""
    text = page.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda found: found[1] + block() + found[2], text)


def block() -> str:
    """A table with a line a family."""
    from transformers.models.auto import modeling_auto as auto

    classes = {**auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    served, windowed = sglang_classes(), windowed_families()
    lines = [
        f"| family | class | packed and published as alone | beyond its window | embedded engine | SGLang {sglang()} | "
        "reward model |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for family in sorted((*COMPARED, *EXPERTS, *HYBRIDS, *VISION)):
        cells = (
            f"`test_trainer_{'images' if family in VISION else 'families'}[{family}]`",
            f"`test_trainer_windows[{family}]`" if family in windowed else "not compared",
            "yes" if classes[family] in EMBEDDED else "through its module",
            "has the class" if classes[family] in served else "by its `transformers` backend",
            "yes" if family in COMPARED and family not in WITHOUT_SCORES else "refused",
        )
        lines.append(f"| `{family}` | `{classes[family]}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n" + abilities()


def abilities() -> str:
    """A table of what each family was seen to do, and its refusals in words."""
    cells, reasons = family_cells(), list[str]()
    columns = [name for name in next(iter(cells.values())) if name != "alone"]
    lines = [f"| family | {' | '.join(columns)} | routing replay | memory plan |", "| --- " * (len(columns) + 3) + "|"]
    for family, told in sorted(cells.items()):
        row = []
        for column in columns:
            if told[column] == "yes":
                row.append("yes")
                continue
            why = (
                told[column]
                .removeprefix("refused: ")
                .replace(f"{family}'s ", "")
                .replace(f"type {family}", "this type")
            )
            why = re.sub(r"is a \w+Experts", "is a stack", re.sub(r"layers\.\d+\.", "", why)).replace(family, "it")
            why = why.replace("the family it", "the family")
            if why not in reasons:
                reasons.append(why)
            row.append(f"refused ({reasons.index(why) + 1})")
        routes = "yes" if family in ROUTED else "not compared" if family.endswith("moe") else "no experts"
        row += [routes, "yes" if family in PLANNED else "none"]
        lines.append(f"| `{family}` | {' | '.join(row)} |")
    words = [f"{number}. {why}" for number, why in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *words]) + "\n"


ROUTED = frozenset(EXPERTS) | {
    "granitemoehybrid",
    "kimi_linear",
    "lfm2_moe",
    "nemotron_h",
    "qwen3_5_moe_text",
    "qwen3_next",
}
"""Families whose routes are replayed, by tests/trainer/test_trainer_routing.py."""


@cache
def windowed_families() -> frozenset[str]:
    """Families that the test of windows compares, by its own table."""
    for node in ast.walk(ast.parse((ROOT / WINDOWS).read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "FAMILIES"
            and isinstance(node.value, ast.Dict)
        ):
            return frozenset(str(ast.literal_eval(key)) for key in node.value.keys if key is not None)
    raise SystemExit(f"{WINDOWS} has no FAMILIES")


def sglang() -> str:
    """Version of SGLang that is installed."""
    return metadata.version("sglang")


@cache
def sglang_classes() -> frozenset[str]:
    """Names of the model classes that SGLang has of its own."""
    spec = util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("SGLang isn't installed: `make setup` installs it")
    folder = Path(spec.submodule_search_locations[0]) / "srt" / "models"
    found = [_ENTRY.findall(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")]
    return frozenset(name for entries in found for entry in entries for name in re.findall(r"\w+", entry))
