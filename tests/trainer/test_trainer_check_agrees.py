"""What the table of families takes, the trainer takes: each family's own configuration, as the library saves it."""

from __future__ import annotations

import json

import pytest
from areal.errors import DataError
from areal.spec.model_families import LIBRARY, VISION, WRAPPED, refuse_untrainable
from areal_trainer.engine.model import empty_model
from support.tiny_families import MORE, SIZES
from transformers import AutoConfig
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

pytestmark = pytest.mark.component

HALF = {"dots1", "hunyuan_v1_dense", "hunyuan_v1_moe", "lfm2_moe", "ministral", "nemotron"}
"""Families whose configuration without any sizes is none that their own code takes."""
NONE = {"musicgen", "musicgen_melody"}  # no configuration without parts of others
CLASSES = {**auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}


def test_every_configuration_that_is_taken_makes_a_model_of_the_trainer(tmp_path):
    taken, apart = [], []
    for family in sorted({*LIBRARY, *VISION, *WRAPPED} - NONE):
        config = (
            AutoConfig.for_model(family, **{**SIZES, **MORE.get(family, {})})
            if family in HALF
            else CONFIG_MAPPING[family]()
        )
        named = CLASSES[family]
        config.architectures = [named if isinstance(named, str) else named[0]]
        config.save_pretrained(tmp_path / family)
        try:
            refuse_untrainable(json.loads((tmp_path / family / "config.json").read_text()), family)
        except DataError:
            with pytest.raises(DataError):
                empty_model(tmp_path / family)
            continue
        try:
            assert empty_model(tmp_path / family).views
            taken.append(family)
        except DataError as error:
            apart.append(f"{family}: {error.message}")
    assert apart == []
    assert len(taken) >= 80
    print(len(taken), "of", len(LIBRARY), "families are taken")
