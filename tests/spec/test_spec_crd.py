"""The custom resource definitions without a server: they are what the code says, and such that a server takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.spec import RULES, Severity
from areal.spec.crd import definitions
from areal.spec.crd.__main__ import main, render
from areal.spec.crd.schema import block_schema
from areal.spec.job import JobSpec

FILES = Path(__file__).resolve().parents[2] / "charts" / "areal" / "files" / "crds"
MADE = definitions()
LARGEST = 190_000  # as compact JSON, which `kubectl apply` carries along in an annotation; 262,144 is the end of it
YAML_BOOLEANS = {"on", "off", "yes", "no", "y", "n"}

Schema = dict[str, Any]


def schemas(definition: dict[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Every schema of a definition with its path, the one at the top first."""
    top = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    waiting = [("", top)]
    while waiting:
        path, schema = waiting.pop()
        yield path, schema
        waiting += [(f"{path}.{name}", inner) for name, inner in schema.get("properties", {}).items()]
        waiting += [(f"{path}[]", schema[key]) for key in ("items", "additionalProperties") if schema.get(key)]


def rules(definition: dict[str, Any]) -> list[dict[str, str]]:
    return [rule for _, schema in schemas(definition) for rule in schema.get("x-kubernetes-validations", [])]


@pytest.mark.parametrize("name", MADE)
def test_the_files_of_the_chart_are_what_the_code_says(name):
    path = FILES / f"{name}.yaml"
    assert path.read_text() == render(MADE[name]), "run `make crd`"
    assert len(json.dumps(MADE[name], separators=(",", ":")).encode()) < LARGEST


def test_check_names_the_file_that_differs(tmp_path, capsys):
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "rljobs.areal.dev.yaml").write_text("something else")
    assert main(["--check", str(tmp_path)]) == 1
    assert "rljobs.areal.dev.yaml differs from the code: run `make crd`" in capsys.readouterr().err


@pytest.mark.parametrize("name", MADE)
def test_every_text_list_and_mapping_is_bounded(name):
    for path, schema in schemas(MADE[name]):
        if path in (".apiVersion", ".kind", ".metadata"):
            continue
        if schema.get("type") == "string" or schema.get("x-kubernetes-int-or-string"):
            assert "maxLength" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
            assert schema["x-kubernetes-list-type"] in ("atomic", "map", "set"), path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


@pytest.mark.parametrize("name", MADE)
def test_every_object_lists_its_fields_or_says_that_it_keeps_all(name):
    for path, schema in schemas(MADE[name]):
        if schema.get("type") == "object" and path != ".metadata":
            kept = schema.get("x-kubernetes-preserve-unknown-fields")
            assert kept or schema.get("properties") or schema.get("additionalProperties"), path


@pytest.mark.parametrize("name", MADE)
def test_every_field_is_described_and_none_is_a_word_that_yaml_turns_into_a_truth(name):
    for path, schema in schemas(MADE[name]):
        field = path.rpartition(".")[2]
        assert field not in YAML_BOOLEANS, path
        inside_a_pod_template = ".template." in path
        if not inside_a_pod_template and not path.endswith("[]") and path != ".metadata":
            assert schema.get("description"), path


@pytest.mark.parametrize("name", MADE)
def test_required_fields_have_no_default_and_keys_of_lists_are_there(name):
    for path, schema in schemas(MADE[name]):
        for field in schema.get("required", []):
            assert "default" not in schema.get("properties", {}).get(field, {}), f"{path}.{field}"
        for key in schema.get("x-kubernetes-list-map-keys", []):
            item = schema["items"]
            assert key in item.get("required", []) or "default" in item["properties"][key], path


def test_conditions_come_first_in_the_status_and_nothing_in_it_has_a_default():
    status = MADE["rljobs.areal.dev"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert next(iter(status["properties"])) == "conditions"
    assert [
        path for path, schema in schemas(MADE["rljobs.areal.dev"]) if path.startswith(".status") and "default" in schema
    ] == []


def test_messages_say_what_must_hold_and_what_to_do():
    for rule in rules(MADE["rljobs.areal.dev"]):
        assert rule["message"].count(". ") >= 1, rule["message"]
        assert rule["message"].endswith("."), rule["message"]
        assert "\n" not in rule["rule"] + rule["message"]


def test_every_error_that_needs_no_facts_is_a_rule_of_the_server_and_no_warning_is():
    given = {rule["rule"] for rule in rules(MADE["rljobs.areal.dev"])}
    for rule in RULES:
        if rule.cel is not None:
            assert (rule.cel in given) == (rule.severity is Severity.ERROR), rule.id


def test_reported_fields_exist():
    top = MADE["rljobs.areal.dev"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    known = {path for path, _ in schemas(MADE["rljobs.areal.dev"])}
    for prefix, holder in (("", top), (".spec", top["properties"]["spec"])):
        for rule in holder["x-kubernetes-validations"]:
            assert "fieldPath" not in rule or f"{prefix}{rule['fieldPath']}" in known, rule


def test_a_job_that_says_nothing_of_pods_stores_nothing_of_pods():
    defaults = block_schema([JobSpec])["properties"]
    assert "default" not in defaults["podTemplate"]
    assert "default" not in defaults["storage"]
    assert "default" not in defaults["evaluation"], "whether it was given matters"
    assert defaults["generation"]["default"] == {"engine": {"type": "embedded"}, "replicas": 1, "streamInterval": 16}


def test_a_union_s_fields_are_of_its_members_only():
    engine = block_schema([JobSpec])["properties"]["generation"]["properties"]["engine"]
    assert engine["properties"]["type"]["enum"] == ["embedded", "sglang"]
    assert "default" not in engine["properties"]["tensorParallel"]
    assert {rule["rule"] for rule in engine["x-kubernetes-validations"]} == {
        f"self.type in ['sglang'] || !has(self.{field})"
        for field in ("tensorParallel", "gpus", "contextLength", "memFraction", "python", "extraArgs")
    } | {"self.type in ['embedded'] || !has(self.cacheMemory)"}


def test_roles_of_pods_have_one_schema_and_only_roles_are_keys():
    pods = MADE["rljobs.areal.dev"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]["podTemplate"]
    assert "nodeSelector" in pods["additionalProperties"]["properties"]
    (known,) = pods["x-kubernetes-validations"]
    assert "'rewardCustom'" in known["rule"]
    assert "rewardCustom" in pods["description"], "kubectl explain shows no keys"
    assert len(pods["additionalProperties"]["x-kubernetes-validations"]) == 6


def test_definitions_are_plain_yaml():
    for name, definition in MADE.items():
        assert yaml.safe_load(render(definition)) == definition, name
