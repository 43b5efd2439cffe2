"""Which fields may change while a job goes on, and how changes to them are read."""

from __future__ import annotations

import pytest
from areal.errors import ConfigError
from areal.local.inspect import HOT, set_hot
from areal.spec.live import live_fields, nested, read_changes


def test_live_fields_are_those_that_the_operator_takes_over() -> None:
    found = live_fields()
    assert set(HOT) | {"generation.replicas", "suspend", "runPolicy.stallTimeoutSeconds"} <= found
    assert not {"algorithm.batchSize", "optimizer.learningRate", "trainer.replicas", "model.path"} & found


def test_changes_become_a_patch() -> None:
    changes = read_changes(["algorithm.maxSteps=20", "spec.algorithm.maxStaleness=0", "suspend=true"], live_fields())
    assert changes == {"algorithm.maxSteps": 20, "algorithm.maxStaleness": 0, "suspend": True}
    assert nested(changes) == {"algorithm": {"maxSteps": 20, "maxStaleness": 0}, "suspend": True}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optimizer.learningRate=1", "can't change"),
        ("algorithm.maxSteps", "no change"),
        ("suspend=true", "can't change"),
    ],
)
def test_other_fields_are_refused_with_those_that_may_change(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        read_changes([text], HOT)
    assert "algorithm.maxSteps" in refused.value.fix


def test_a_run_that_does_not_go_on_can_not_be_changed(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no run goes on"):
        set_hot(tmp_path, {"algorithm.maxSteps": 9})
    with pytest.raises(ConfigError, match="whole number"):
        set_hot(tmp_path, {"algorithm.maxSteps": "many"})
