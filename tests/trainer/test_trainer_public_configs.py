"""`areal check --model-config` and the trainer say the same of configurations as they are published."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from areal.errors import DataError
from areal.spec.model_families import refuse_untrainable

pytest.importorskip("torch")

FILE = Path(__file__).parents[1] / "spec" / "public_configs.json.gz"
PUBLIC: dict[str, dict[str, Any]] = json.loads(gzip.decompress(FILE.read_bytes()))


def verdict(look) -> str:
    try:
        look()
    except DataError as refused:
        return refused.message
    return ""


@pytest.mark.parametrize("name", PUBLIC)
def test_the_table_says_what_the_trainer_says(name, tmp_path):
    from areal_trainer.engine.model import empty_model

    config = PUBLIC[name] | {"num_hidden_layers": 2}  # for time; the verdict is no layer's
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:2]
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = verdict(lambda: refuse_untrainable(config, str(tmp_path)))
    assert verdict(lambda: empty_model(tmp_path)) == said


def test_the_forty_are_of_both_kinds():
    refused = [name for name, config in PUBLIC.items() if verdict(lambda c=config: refuse_untrainable(c, "it"))]
    assert len(PUBLIC) == 40
    assert {"Qwen/Qwen3-8B", "meta-llama/Meta-Llama-3.1-8B"} <= PUBLIC.keys() - set(refused)
    assert 20 <= len(refused) <= 35
