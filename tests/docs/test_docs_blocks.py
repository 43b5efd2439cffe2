"""Code blocks of pages and examples: commands are read, jobs judged, recipes called, and the rest says why not."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from areal.cli.main import app
from areal.convert.convert import convert
from areal.errors import ConfigError
from areal.spec.block import fields_of
from areal.spec.check import Severity, check
from areal.spec.job import JobSpec
from areal.spec.load import load_job
from areal.spec.runtime import RuntimeSpec
from areal.workflow.recipe import load_recipe
from typer.main import get_command

from tools.doc_blocks import LANGUAGES, REASONS, ROOT, DocBlock, all_blocks, apart, commands_of, in_text
from tools.pages.command_line import passed_on

BLOCKS = all_blocks()
BASE = {
    "model": {"path": "models/new-1m"},
    "recipe": {"file": "recipe.py"},
    "dataset": {"train": {"jsonl": "data/train.jsonl"}},
    "rollout": {"maxSampleTokens": 64, "sampling": {"maxNewTokens": 32}},
    "algorithm": {"name": "GRPO", "batchSize": 64, "maxSteps": 100},
}
FIELDS = set(fields_of(JobSpec))
VALUES = json.loads((ROOT / "charts/areal/values.schema.json").read_text())


def of(language: str) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_is_run_or_says_why_not(block: DocBlock) -> None:
    assert block.language in LANGUAGES, "name a language of LANGUAGES, in a fence"
    if block.not_run:
        assert block.not_run in REASONS
        assert not block.run_by
        assert block.language != "text", "there is nothing to run"
    if block.run_by:
        file, _, test = block.run_by.partition("::")
        assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.M), block.run_by
    if block.language == "bash" and block.is_run_here:
        assert not all(apart(words) for words in commands_of(block.text)), "nothing of it is run: mark it"


def test_blocks_without_language_by_indentation_or_with_an_unknown_reason_are_found() -> None:
    page = "x\n\n    areal run\n\n- item\n\n    more of it\n\n<!-- not run: boring -->\n```bash\nareal\n```\n"
    one, other = in_text(page, "page.md")
    assert (one.language, one.line) == ("", 3)
    assert (other.not_run, other.is_run_here, other.line) == ("boring", False, 11)


def test_most_blocks_are_run() -> None:
    code = [block for block in BLOCKS if block.language != "text"]
    assert len(code) > 180
    assert sum(not block.not_run for block in code) > 0.7 * len(code)


# commands


@pytest.mark.parametrize("block", of("bash"))
def test_commands_exist_with_their_options_fields_and_files(block: DocBlock) -> None:
    for words in commands_of(block.text):
        program = words[0]
        if program == "areal":
            parsed(words[1:])
        elif program == "make":
            assert re.search(rf"^{next((w for w in words[1:] if '=' not in w), 'help')}:", MAKEFILE, re.M), words
        elif program.startswith("tools/"):
            assert (ROOT / program).exists()
        elif program == "python" and words[1].startswith(("examples/", "bench/")):
            assert (ROOT / words[1]).exists()
        elif program == "helm":
            for key in re.findall(r"--set[ =](\S+)", " ".join(words)):
                for one in key.split(","):
                    assert schema_at(one.partition("=")[0].split(".")) is not None, one


MAKEFILE = (ROOT / "Makefile").read_text()


def parsed(words: list[str]) -> None:
    """Raise for a command or an option that isn't there, and for an override of a field that a job hasn't."""
    command: Any = get_command(app)
    name = "areal"
    while hasattr(command, "commands") and words and words[0] in command.commands:
        name, command, words = words[0], command.commands[words[0]], words[1:]
    assert name != "areal", words
    command.make_parser(command.context_class(command, info_name=name, **command.context_settings)).parse_args(
        list(words)
    )
    if command.context_settings.get("ignore_unknown_options"):
        known = " ".join(option for option, _ in passed_on(f"areal {name}"))
        assert [word for word in words if word.startswith("--") and word not in known] == []
    job = next((word for word in words if word.endswith(".yaml")), None)
    others = {index + 1 for index, word in enumerate(words) if word in ("--slurm", "--ray")}  # no fields of a job
    fields = [word for index, word in enumerate(words) if index not in others and re.match(r"[a-z]+[A-Za-z.]*=", word)]
    fields = [field.partition(",")[0] for field in fields]  # of a sweep the first
    if name in ("run", "check", "submit", "study", "prepare") and job:
        load_job(ROOT / job if job.startswith("examples/") else ROOT / "examples/quickstart.yaml", fields)
    if name == "set":
        load_job(ROOT / "examples/quickstart.yaml", fields)


def schema_at(path: list[str]) -> Mapping[str, Any] | None:
    """What the chart's schema says of a value."""
    found: Mapping[str, Any] = VALUES
    for name in path:
        if "$ref" in found:
            found = VALUES["definitions"][found["$ref"].rpartition("/")[2]]
        inner = found.get("properties", {})
        if name not in inner:
            return None
        found = inner[name]
    return found


# what is written in YAML, JSON, TOML


@pytest.mark.parametrize("block", of("yaml"))
def test_what_is_written_in_yaml_is_a_job_a_part_of_one_or_values_of_the_chart(block: DocBlock, tmp_path: Path) -> None:
    if block.not_run or block.run_by:
        return
    shown = yaml.safe_load(block.text)
    if shown is None:
        assert block.text.startswith("# decide: ")
    elif shown.get("kind") in ("ClusterRLRuntime", "RLRuntime"):
        RuntimeSpec.model_validate(shown["spec"])
    elif shown.keys() & {"gconfig", "actor_rollout_ref"}:
        (tmp_path / "theirs.yaml").write_text(block.text)
        assert convert(tmp_path / "theirs.yaml").spec
    elif not shown.keys() & (FIELDS | {"spec", "apiVersion"}):
        jsonschema.validate(shown, VALUES)
    else:
        (tmp_path / "templates").mkdir()
        (tmp_path / "templates/no-thoughts.jinja").write_text("{{ messages[0].content }}")
        path = tmp_path / "job.yaml"
        path.write_text(block.text if "apiVersion" in shown else yaml.safe_dump(whole(shown)))
        found = [finding for finding in check(load_job(path)) if finding.severity is Severity.ERROR]
        assert found == []


def whole(part: Mapping[str, Any]) -> dict[str, Any]:
    """A job that has this part, and the least of everything else."""
    spec = part.get("spec", part)
    base: dict[str, Any] = BASE
    if "training" in spec:
        base = {"model": BASE["model"], "dataset": BASE["dataset"]}
    elif spec.get("algorithm", {}).get("teacher") or spec.get("reward", {}).get("verifier"):
        base = {name: value for name, value in BASE.items() if name != "recipe"}
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "shown"}}
    return head | {"spec": merged(base, spec)}


def merged(base: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)  # of which a model and a source are taken whole
    for name, value in part.items():
        inner = found.get(name)
        nested = name not in ("model", "train") and isinstance(inner, Mapping) and isinstance(value, Mapping)
        found[name] = merged(inner, value) if nested else value
    return found


def test_a_part_with_a_field_that_is_not_there_is_found(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(whole({"rollout": {"gatway": {"replicas": 2}}})))
    with pytest.raises(ConfigError, match="gatway"):
        load_job(path)


@pytest.mark.parametrize("block", [*of("json"), *of("toml")])
def test_what_is_written_in_json_and_toml_can_be_read(block: DocBlock) -> None:
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        assert all(json.loads(line) for line in block.text.splitlines())


# Python


def recipes() -> Iterator[Any]:
    for block in BLOCKS:
        if block.language == "python" and block.is_run_here and "import areal\n" not in block.text:
            yield pytest.param(block, id=block.place)


@pytest.mark.parametrize("block", recipes())
def test_a_recipe_that_is_shown_loads_and_its_functions_answer(block: DocBlock, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(block.text)
    recipe = load_recipe(tmp_path / "recipe.py")
    if recipe.dataset is not None:
        assert next(iter(recipe.dataset("train")))["prompt"]
    elif recipe.reward is not None:
        said = recipe.reward("21=", "12", [1], [2, 3], answer="12", data_source="digits")
        assert (said if isinstance(said, float) else said["correct"]) == 1.0
    else:
        assert recipe.workflows, "a recipe that only shows hooks names the test that runs it"
