"""Datasets: adapters read rows once, `prepare` writes an indexed, digested snapshot, `g` indexes that snapshot.

snapshot = prepare(JsonlSource(Path("data/train.jsonl")), out_dir, required=("prompt", "answer"))
row = snapshot.row(row_of(group, len(snapshot), seed))
"""

from areal.data.order import row_of
from areal.data.prepare import prepare
from areal.data.snapshot import Snapshot
from areal.data.source import HuggingFaceSource, JsonlSource, ReasoningGymSource, RecipeSource, Source, source_from_spec

__all__ = [
    "HuggingFaceSource",
    "JsonlSource",
    "ReasoningGymSource",
    "RecipeSource",
    "Snapshot",
    "Source",
    "prepare",
    "row_of",
    "source_from_spec",
]
