"""Reading `resolved.json` of other versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError
from areal.plan.resolved import VERSION, ResolvedJob
from support.cluster_jobs import quickstart_wanted


def written(version: str, **changes: Any) -> str:
    """The file as a writer of `version` leaves it, with fields that we don't know at every depth."""
    values = json.loads(quickstart_wanted().resolved.model_dump_json())
    values |= {"version": version, **changes}
    values["job"]["spec"]["algorithm"]["fromTheFuture"] = 1
    values["job"]["spec"]["dataset"]["train"]["fromTheFuture"] = {"deep": [1]}
    values["endpoints"]["fromTheFuture"] = None
    return json.dumps(values)


def newer() -> str:
    major, _, minor = VERSION.partition(".")
    return f"{major}.{int(minor) + 1}"


def test_fields_of_a_newer_minor_version_are_ignored() -> None:
    read = ResolvedJob.parse(written(newer(), fromTheFuture=[1]), "it")
    assert read == quickstart_wanted().resolved.model_copy(update={"version": newer()})


def test_unknown_fields_of_our_own_version_are_refused() -> None:
    with pytest.raises(ConfigError, match="fromTheFuture"):
        ResolvedJob.parse(written(VERSION), "it")


def test_a_wrong_value_is_refused_whatever_the_version() -> None:
    with pytest.raises(ConfigError, match="run_dir"):
        ResolvedJob.parse(written(newer(), run_dir=3), "it")


@pytest.mark.parametrize("text", [written("2.0"), "[]", "{", '{"version": "x"}'])
def test_what_is_no_file_of_our_major_version_is_one_error(text: str) -> None:
    with pytest.raises(ConfigError, match="no resolved job"):
        ResolvedJob.parse(text, "it")


def test_a_file_of_before_versions_is_read() -> None:
    values = json.loads(quickstart_wanted().resolved.model_dump_json())
    del values["version"]
    assert ResolvedJob.parse(json.dumps(values), "it") == quickstart_wanted().resolved


@pytest.mark.parametrize(
    ("config", "replays", "expected"),
    [
        ({"model_type": "qwen3", "num_hidden_layers": 2}, True, 0),
        ({"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}, True, 4),
        ({"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}, False, 0),
        (None, True, None),
    ],
)
def test_routes_are_those_of_the_models_experts(
    config: dict[str, Any] | None, replays: bool, expected: int | None, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    job = quickstart_wanted().resolved.model_copy(update={"model_path": tmp_path})
    trainer = job.spec.trainer.model_copy(update={"routing_replay": replays})
    spec = job.spec.model_copy(update={"trainer": trainer})
    resolved = job.model_copy(update={"job": job.job.model_copy(update={"spec": spec})})
    assert resolved.route_bytes == expected
