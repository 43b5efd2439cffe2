"""What a training loop may call is on the page, with its arguments."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
from areal.spec.model_families import COMPARED, EMBEDDED

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_call_of_a_training_loop_is_described():
    pytest.importorskip("torch")
    from areal_trainer.actor import Actor
    from areal_trainer.context import TrainContext
    from areal_trainer.rollout import Rollout

    page = (DOCS / "workflows.md").read_text()
    for name, owner in (("rollout", Rollout), ("actor", Actor)):
        for method, function in inspect.getmembers(owner, inspect.isfunction):
            if method.startswith("_"):
                continue
            described = re.search(rf"`{name}\.{method}\(([^)]*)\)", page)
            assert described, f"{name}.{method}"
            given = [word.split("=")[0].strip() for word in described[1].split(",") if word.strip()]
            takes = [
                argument
                for argument, parameter in inspect.signature(function).parameters.items()
                if argument != "self" and parameter.kind is not parameter.KEYWORD_ONLY
            ]
            assert given == takes, f"{name}.{method}"
    for field in fields(TrainContext):
        assert f"`{field.name}" in page


def test_the_architectures_of_the_engine_are_named():
    page = (DOCS / "models.md").read_text()
    assert all(f"`{name}`" in page for name in (*EMBEDDED, *COMPARED))
