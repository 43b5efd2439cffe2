"""Job files of release 0.1: each is refused with the new places, rewritten with its comments, and means what it meant.

`migration/0.1/` holds the examples of that release, and in resolved.json what it made of the blocks that moved.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.cli.main import app
from areal.errors import ConfigError, ExitCode
from areal.plan import ResolvedJob
from areal.spec import JobSpec, job_from_object, load_job
from areal.spec.block import blocks_in, fields_of
from areal.spec.migration import FIXED_ROWS, MOVED, migrated, old_fields, place_now
from areal.spec.problems import SpecError
from areal.spec.resolved_algorithm import resolve
from areal.spec.rewrite import rewrite, rewrite_file
from typer.testing import CliRunner

OLD = Path(__file__).parent / "migration" / "0.1"
EXAMPLES = sorted(OLD.glob("*.yaml"))
MEANT = json.loads((OLD / "resolved.json").read_text())
BLOCKS = {"training", "algorithm", "optimizer", "trainer", *FIXED_ROWS}
HEAD = "apiVersion: areal.dev/v1alpha1\nkind: RLJob\nmetadata: {name: a}\n"
SPEC = "spec:\n  model: {path: m}\n  dataset: {train: {jsonl: d.jsonl}}\n"

each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def comments(text: str) -> list[str]:
    """Every comment, in the order of their words: they may change places."""
    return sorted(line.partition("#")[2].strip() for line in text.splitlines() if "#" in line)


def written(folder: Path, spec: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(HEAD + SPEC + spec)
    return path


@each_example
def test_every_example_of_the_release_is_rewritten_and_means_what_it_meant(path: Path, tmp_path: Path) -> None:
    found = rewrite(path.read_text(), path)
    assert found.moves
    assert found.comments_kept
    assert comments(found.text) == comments(path.read_text())
    (tmp_path / "new.yaml").write_text(found.text)
    old, new = yaml.safe_load(path.read_text())["spec"], yaml.safe_load(found.text)["spec"]
    assert {name: block for name, block in old.items() if name not in BLOCKS} == {
        name: block for name, block in new.items() if name not in BLOCKS
    }
    spec, meant = load_job(tmp_path / "new.yaml").spec, MEANT[path.stem]
    there = {name: block for name, block in migrated(meant["spec"]).items() if block is not None}
    needed = {"model": {"path": "m"}, "dataset": {"train": {"jsonl": "d"}}}
    same = JobSpec.model_validate({**needed, **there}, strict=False)
    assert (spec.algorithm_block, spec.supervised, spec.optimizer) == (
        same.algorithm_block, same.supervised, same.optimizer,
    )  # fmt: skip
    assert (resolve(spec).shown if spec.is_rl else None) == meant["inForce"]


@each_example
def test_every_example_of_the_release_is_refused_with_lines_and_new_places(path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(path)
    assert f"areal check --rewrite {path}" in caught.value.fix
    lines = path.read_text().splitlines()
    for problem in caught.value.problems:
        line = int(problem.where.rpartition(":")[2])
        assert problem.field.rpartition(".")[2] in lines[line - 1]
        assert "is now " in problem.message or "is a block now" in problem.message


def test_old_places_are_no_fields_and_new_ones_are() -> None:
    def there(path: str) -> bool:
        block: Any = JobSpec
        for key in path.split("."):
            if block is None:
                return False
            fields = {name: field for each in _members(block) for name, field in fields_of(each).items()}
            if key not in fields:
                return False
            block = fields[key].annotation
        return True

    def _members(block: Any) -> list[Any]:
        return [block] if isinstance(block, type) else blocks_in(block)

    assert [old for old in MOVED if there(old)] == []
    assert [new for new in MOVED.values() if new and not there(new)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("algorithm.betas", "optimizer.betas"),
        ("algorithm.rejection.upper", "algorithm.advanced.rejection.upper"),
        ("rewardModel.marginField", "training.marginField"),
        ("dpo.gradClip", "optimizer.gradClip"),
        ("distillation.loss", "training.divergence"),
        ("trainer.optimizer", ""),
        ("algorithm.maxSteps", None),
        ("training.batchSize", None),
    ],
)
def test_a_path_moves_with_what_it_is_in(old: str, new: str | None) -> None:
    assert place_now(old) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"training": "RL", "algorithm": {"name": "GRPO", "eps": 1e-7}},
         {"algorithm": {"name": "GRPO"}, "optimizer": {"eps": 1e-7}}),
        ({"training": "SFT"}, {"training": {"name": "SFT"}}),
        ({"algorithm": {"name": "GRPO", "kl": {"coefficient": 0.1}, "klCoefficient": 0.2}},
         {"algorithm": {"name": "GRPO", "kl": {"coefficient": 0.1}}}),
        ({"algorithm": {"name": "REINFORCE++", "klCoefficient": 0.0}},
         {"algorithm": {"name": "REINFORCE++", "kl": {"coefficient": 0.0}}}),
        ({"algorithm": {"name": "REINFORCE++", "kl": {"coefficient": 0.1}}},
         {"algorithm": {"name": "REINFORCE++", "kl": {"as": "loss", "coefficient": 0.1}}}),
        ({"trainer": {"optimizer": "adamw"}}, {}),
        ({"sft": None, "algorithm": {"name": "GRPO"}}, {"algorithm": {"name": "GRPO"}}),
        ({"algorithm": {"name": "GRPO", "rejection": None}},
         {"algorithm": {"name": "GRPO", "advanced": {"rejection": None}}}),
    ],
)  # fmt: skip
def test_the_new_form_of_values(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert migrated(old) == new
    assert list(old_fields(new)) == []


def test_a_file_that_says_two_things_is_not_rewritten(tmp_path: Path) -> None:
    path = written(tmp_path, "  training: SFT\n  dpo: {batchSize: 4}\n")
    with pytest.raises(ConfigError, match="training is SFT, and the block dpo is given"):
        rewrite_file(path)
    assert "dpo" in path.read_text()


def test_a_divergence_stays_where_it_was(tmp_path: Path) -> None:
    block = "  algorithm:\n    name: REINFORCE++\n    batchSize: 4\n    maxSteps: 4\n"
    given = resolve(load_job(_new(tmp_path, f"{block}    kl: {{coefficient: 0.1}}\n    gamma: 1\n")).spec).kl
    short = resolve(load_job(_new(tmp_path, f"{block}    klCoefficient: 0.1    # a little\n")).spec).kl
    assert given is not None
    assert short is not None
    assert (given.where, given.kind) == ("loss", "k2")
    assert (short.where, short.kind) == ("reward", "k1")


def _new(folder: Path, spec: str) -> Path:
    path = written(folder, spec)
    rewrite_file(path)
    return path


def test_comments_stay_with_their_fields(tmp_path: Path) -> None:
    path = _new(
        tmp_path,
        "  training: SFT                # not RL\n"
        "  # what is learned\n"
        "  sft:                         # fixed rows\n"
        "    batchSize: 4               # rows\n"
        "    # high: a toy\n"
        "    learningRate: 1e-3         # of Adam\n"
        "  seed: 3\n",
    )
    assert path.read_text().removeprefix(HEAD + SPEC) == (
        "  # what is learned\n"
        "  training:                         # fixed rows\n"
        "    name: SFT                # not RL\n"
        "    batchSize: 4               # rows\n"
        "  optimizer:\n"
        "    # high: a toy\n"
        "    learningRate: 1e-3         # of Adam\n"
        "  seed: 3\n"
    )
    assert not path.with_name("job.yaml.old").exists()


@pytest.mark.parametrize("text", ["json", "anchors"])
def test_a_file_whose_lines_can_t_be_moved_is_written_plainly_and_the_old_one_stays(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, "  algorithm: {name: GRPO, batchSize: 4, maxSteps: 4, learningRate: 1e-5}\n")
    if text == "json":
        path.write_text(json.dumps({**yaml.safe_load(path.read_text())}))
    else:
        path.write_text(path.read_text().replace("{name: GRPO", "&all {name: GRPO") + "  # the end\n")
    old = path.read_text()
    found = rewrite_file(path)
    job = load_job(path)
    assert (job.spec.optimizer.learning_rate, job.spec.algorithm.batch_size) == (1e-5, 4)
    assert found.comments_kept == (not path.with_name("job.yaml.old").exists())
    if not found.comments_kept:
        assert path.with_name("job.yaml.old").read_text() == old


def test_the_command_rewrites_in_place_and_says_what_moved(tmp_path: Path) -> None:
    path = written(tmp_path, "  algorithm: {name: GRPO, batchSize: 4, maxSteps: 4, learningRate: 1e-5}\n")
    said = CliRunner().invoke(app, ["check", "--rewrite", str(path)])
    assert said.exit_code == ExitCode.DONE, said.output
    assert "algorithm.learningRate is now optimizer.learningRate" in said.output
    assert path.read_text().endswith("maxSteps: 4}\n  optimizer: {learningRate: 1e-5}\n")
    again = CliRunner().invoke(app, ["check", "--rewrite", str(path)])
    assert "has no field of an earlier release" in again.output
    assert load_job(path).spec.optimizer.learning_rate == 1e-5


def test_an_object_that_a_cluster_kept_is_refused_with_what_to_do() -> None:
    """An API server drops fields that its definition doesn't have; `training: RL`, which it had filled in, stays."""
    kept = {
        "model": {"path": "m"}, "dataset": {"train": {"jsonl": "d"}}, "training": "RL",
        "algorithm": {"name": "GRPO", "batchSize": 4, "maxSteps": 4},
    }  # fmt: skip
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "a", "namespace": "team"}}
    with pytest.raises(SpecError, match=r"RLJob team/a: spec\.training: is a block now") as caught:
        job_from_object({**head, "spec": kept})
    assert "areal check --rewrite" in caught.value.fix
    assert "docs/migration.md" in caught.value.fix


def test_a_resolved_job_of_the_release_is_read_in_its_new_form(tmp_path: Path) -> None:
    release = Path(__file__).parents[1] / "operator" / "operator" / "compat" / "0.1.0" / "resolved.json"
    values = json.loads(release.read_text())
    values["job"]["spec"]["algorithm"] |= {"learningRate": 3e-6, "klCoefficient": 0.01}
    job = ResolvedJob.parse(json.dumps(values), "it").job
    assert job.spec.optimizer.learning_rate == 3e-6
    assert job.spec.algorithm.kl is not None
    assert job.spec.algorithm.kl.coefficient == 0.01
