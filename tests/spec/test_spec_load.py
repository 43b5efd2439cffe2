"""Loading a job: what is coerced, and how errors read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from areal.errors import ConfigError, ExitCode
from areal.local.kept import claimed
from areal.spec import load_job
from areal.spec.problems import SpecError
from spec_corpus import CORPUS

QUICKSTART = CORPUS / "accepted" / "quickstart.yaml"


def refused(path: Path, *overrides: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_job(path, overrides)
    return caught.value


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def test_numbers_and_sizes_may_be_strings():
    job = load_job(CORPUS / "accepted" / "strings-for-numbers.yaml")
    assert job.spec.optimizer.learning_rate == 1e-4
    assert job.spec.replay.budget_bytes == 3 << 29


def test_overrides_start_below_spec_or_at_the_top():
    given = [
        "algorithm.maxSteps=20",
        "spec.optimizer.learningRate=1e-4",
        "metadata.name=second",
        "optimizer.betas=[0.8, 0.9]",
    ]
    job = load_job(
        QUICKSTART, [*given, "generation.engine={type: sglang, extraArgs: [--log-level=info]}", "recipe=null"]
    )
    algorithm = job.spec.algorithm
    assert (algorithm.max_steps, job.spec.optimizer.learning_rate, job.metadata.name) == (20, 1e-4, "second")
    assert job.spec.optimizer.betas == (0.8, 0.9)
    assert job.spec.generation.engine.extra_args == ["--log-level=info"]
    assert job.spec.recipe is None
    assert job.spec.algorithm.batch_size == 64


def test_an_override_makes_blocks_that_the_file_leaves_out():
    job = load_job(QUICKSTART, ["checkpoint.intervalSteps=4", "podTemplate.trainer.nodeSelector.gpu=h200"])
    assert job.spec.checkpoint.interval_steps == 4
    assert job.spec.pod_template.trainer.node_selector == {"gpu": "h200"}


def test_a_later_override_wins():
    assert load_job(QUICKSTART, ["seed=1", "seed=2"]).spec.seed == 2


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algorithm.maxStep=20", "spec.algorithm.maxStep: unknown field; did you mean maxSteps?\n"),
        ("algorithm.max_steps=20", "did you mean maxSteps?"),
        ("checkpoint.every=20", "spec.checkpoint.every: unknown field; allowed here: intervalSteps, keep."),
        ("rollout.foo=1", "unknown field, and none here is called alike: docs/rljob.md lists all"),
        ("algorithm.learningRate=1e-4", "spec.algorithm.learningRate: is now optimizer.learningRate"),
        ("algorithm.lambda=1", "spec.algorithm.lambda: is now algorithm.advanced.lambda"),
        ("algorithm.rejection.upper=2", "is now algorithm.advanced.rejection.upper"),
        ("sft.batchSize=4", "spec.sft.batchSize: is now training.batchSize"),
        ("training=SFT", "spec.training: is a block now: `training: {name: SFT, …}`"),
        ("trainer.optimizer=adamw", "is no field any more"),
        ("algoritm.maxSteps=20", "spec.algoritm: unknown field; did you mean algorithm?"),
        ("maxSteps=20", "did you mean algorithm.maxSteps?"),
        (
            "intervalSteps=20",
            "did you mean evaluation.intervalSteps or weightSync.intervalSteps or checkpoint.intervalSteps or "
            "export.intervalSteps?",
        ),
        ("metadata.nam=x", "metadata.nam: unknown field; did you mean name?"),
        ("seed.value=1", "spec.seed has no fields of its own"),
        ("algorithm.maxSteps=many", "spec.algorithm.maxSteps: expected a whole number, got 'many'"),
        ("algorithm.maxSteps=0", "0 is refused: it must be at least 1"),
        ("optimizer.lrSchedule=linar", "'linar' is unknown; did you mean linear? Allowed: linear, constant, cosine."),
        ("generation.engine.type=sgland", "spec.generation.engine.type: 'sgland' is unknown; did you mean sglang?"),
        ("algorithm.advanced.decoupled=maybe", "expected true or false, got 'maybe'"),
        ("trainer=4", "spec.trainer: expected a mapping, got 4"),
        ("rollout.workflow=[a]", "spec.rollout.workflow: expected text, got a list"),
        ("algorithm.maxSteps", "an override is written field=value"),
        ("=3", "an override is written field=value"),
        ("optimizer.betas=[0.9", "is no YAML value"),
    ],
)
def test_a_wrong_override_says_what_was_meant(override, says):
    error = refused(QUICKSTART, override)
    assert says in str(error)
    assert f"override {override}" in str(error)


def test_all_errors_come_at_once_each_with_its_line(tmp_path):
    text = QUICKSTART.read_text()
    path = write(
        tmp_path, text.replace("batchSize: 64", "batchSize: big\n    gropSize: 8").replace("temperature", "temprature")
    )
    lines = path.read_text().splitlines()
    error = refused(path, "algorithm.maxSteps=x")
    by_field = {problem.field: problem.where for problem in error.problems}
    line = {
        word: next(number for number, each in enumerate(lines, 1) if word in each)
        for word in ("big", "gropS", "tempra")
    }
    assert by_field == {
        "spec.algorithm.batchSize": f"{path}:{line['big']}",
        "spec.algorithm.gropSize": f"{path}:{line['gropS']}",
        "spec.rollout.sampling.temprature": f"{path}:{line['tempra']}",
        "spec.algorithm.maxSteps": "override algorithm.maxSteps=x",
    }
    assert f"{path} has 4 errors:" in str(error)
    assert "did you mean groupSize?" in str(error)
    assert "did you mean temperature?" in str(error)
    assert error.exit_code == ExitCode.CONFIG


def test_a_field_knows_where_it_was_given():
    job = load_job(QUICKSTART, ["algorithm.maxSteps=20"])
    line = next(n for n, text in enumerate(QUICKSTART.read_text().splitlines(), 1) if "batchSize" in text)
    assert job.where("spec.algorithm.batchSize") == f"{QUICKSTART}:{line}"
    assert job.where("spec.algorithm.maxSteps") == "override algorithm.maxSteps=20"
    assert job.where("spec.optimizer.eps") == job.where("spec.optimizer")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- a\n- b\n", "holds no mapping"),
        ("kind: RLJob\n\tspec: {}\n", "job.yaml:2:1: this is no valid YAML"),
        ("kind: RLJob\nspec: {a: [1, 2}\n", "job.yaml:2:"),
        ("kind: RLJob\n---\nkind: RLJob\n", "job.yaml:2: a second YAML document"),
        ("spec: &a {inner: *a}\n", "found undefined alias|nested too deep|recursive"),
        ("spec: !!python/object/apply:os.getcwd []\n", "the tag .* is not for job files"),
        ("? [a, b]\n: 1\n", "no valid YAML|unhashable|needs a name"),
    ],
)
def test_what_is_no_job_file_is_refused_with_its_place(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load_job(write(tmp_path, text))
    assert caught.value.fix


def test_missing_files_and_directories_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file .*nowhere\.yaml"):
        load_job(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_job(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no UTF-8"):
        load_job(tmp_path / "binary.yaml")


def test_merge_keys_and_anchors_work(tmp_path):
    text = (
        QUICKSTART.read_text()
        .replace("    train:\n", "    train: &rows\n")
        .replace(
            "    evaluation:\n      jsonl: data/heldout.jsonl\n",
            "    evaluation: {<<: *rows, jsonl: data/other.jsonl}\n",
        )
    )
    dataset = load_job(write(tmp_path, text)).spec.dataset
    assert (dataset.train.jsonl, dataset.evaluation.jsonl) == ("data/train.jsonl", "data/other.jsonl")


def test_null_means_not_given_where_null_is_no_value():
    job = load_job(QUICKSTART, ["algorithm.groupSize=null", "algorithm.advanced.rejection=null", "rollout=null"])
    assert job.spec.algorithm.group_size == 8
    assert job.spec.algorithm.advanced.rejection is None
    assert job.spec.rollout.workflow == "rlvr"


def test_a_loaded_job_survives_json():
    job = load_job(CORPUS / "accepted" / "sglang.yaml")
    again = type(job).model_validate_json(job.model_dump_json())
    assert again == job
    assert again.digest() == job.digest()
    assert again != load_job(CORPUS / "accepted" / "sglang.yaml", ["seed=1"])


def test_importing_the_spec_is_cheap():
    program = (
        "import sys, areal.spec\n"
        "heavy = {'torch', 'transformers', 'numpy', 'grpc', 'redis'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_directory_whose_name_is_no_text_is_refused(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9") / "job.yaml"
    path.parent.mkdir()
    path.write_bytes(QUICKSTART.read_bytes())
    with pytest.raises(ConfigError, match=r"caf\\udce9/job.yaml' is no UTF-8 text"):
        load_job(path)
    with pytest.raises(ConfigError, match=r"caf\\udce9' is no UTF-8 text"), claimed(path.parent):
        pass
