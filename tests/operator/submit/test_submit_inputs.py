"""What is uploaded under which name, and the job that names it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.admit.cluster import resolve_for_pods
from areal.errors import ConfigError
from areal.spec import Severity, check, job_from_object
from areal_operator.submit import inputs
from areal_operator.submit.inputs import digest_all, local_sources, on_cluster
from submit_parts import RECIPE, job_in, write_job


def trees_of(job, folder: Path) -> list[inputs.Tree]:
    return digest_all(local_sources(job, folder), "inputs")


def test_a_name_follows_from_what_is_in_the_files(tmp_path):
    job = job_in(tmp_path)
    model, train = trees_of(job, tmp_path)
    assert model.directory.startswith("inputs/model-")
    assert model.place == model.directory
    assert train.place == f"{train.directory}/train.jsonl"
    assert trees_of(job, tmp_path) == [model, train]
    (tmp_path / "model" / "config.json").write_text('{"a": 1}')
    assert trees_of(job, tmp_path)[0].directory != model.directory
    assert trees_of(job, tmp_path)[1] == train


def test_the_same_folder_named_twice_is_one_directory(tmp_path):
    job = job_in(tmp_path, "model.tokenizer=model")
    model, tokenizer, _ = trees_of(job, tmp_path)
    assert tokenizer.directory == model.directory


def test_what_is_in_images_on_volumes_and_on_a_hub_stays_where_it_is(tmp_path):
    given = [
        "model={uri: pvc://models/digits}",
        "model.tokenizer=/tokenizers/digits",
        "trainer.hooks=pvc://code/hooks.py",
        "dataset.train={huggingFace: {path: openai/gsm8k}}",
    ]
    assert local_sources(job_in(tmp_path, *given), tmp_path) == {}


def test_a_folder_of_a_dataset_and_hooks_are_sent(tmp_path):
    job = job_in(tmp_path, "dataset.train={huggingFace: {path: rows}}", "trainer.hooks=hooks.py")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.parquet").write_bytes(b"rows")
    (tmp_path / "hooks.py").write_text("")
    made = on_cluster(job, "team-a", "digits-run", trees_of(job, tmp_path), None, None)
    assert made["spec"]["dataset"]["train"]["huggingFace"]["path"].startswith("pvc://digits-run/inputs/train-")
    assert made["spec"]["trainer"]["hooks"].endswith("/hooks.py")


def test_a_teacher_is_sent_beside_its_student(tmp_path):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "config.json").write_text("{}")
    student = ["training={name: Distillation, batchSize: 4, teacher: {path: teacher}}", "algorithm=null"]
    job = job_in(tmp_path, *student, "rollout=null", "recipe=null")
    made = on_cluster(job, "team-a", "digits-run", trees_of(job, tmp_path), None, None)
    place = made["spec"]["training"]["teacher"]["path"]
    assert place.startswith("pvc://digits-run/inputs/teacher-")
    resolved = resolve_for_pods(job_from_object(made), namespace="team-a", uid="u-1", recipe_source=None)
    assert str(resolved.teacher_path) == place.replace("pvc://", "/areal/claims/")


def test_so_is_the_teacher_of_a_policy(tmp_path):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "config.json").write_text("{}")
    job = job_in(tmp_path, "algorithm.teacher.path=teacher")
    made = on_cluster(job, "team-a", "digits-run", trees_of(job, tmp_path), ("digits-recipe", "recipe.py"), "custom")
    place = made["spec"]["algorithm"]["teacher"]["path"]
    assert place.startswith("pvc://digits-run/inputs/teacher-")
    recipe = "def reward(**row):\n    return 1.0\n"
    resolved = resolve_for_pods(job_from_object(made), namespace="team-a", uid="u-1", recipe_source=recipe)
    assert str(resolved.teacher_path) == place.replace("pvc://", "/areal/claims/")


def test_a_reward_model_is_sent_along(tmp_path):
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "config.json").write_text("{}")
    job = job_in(tmp_path, "recipe=null", "reward={verifier: model, model: {path: scores}}")
    made = on_cluster(job, "team-a", "digits-run", trees_of(job, tmp_path), None, None)
    place = made["spec"]["reward"]["model"]["path"]
    assert place.startswith("pvc://digits-run/inputs/reward-model-")
    resolved = resolve_for_pods(job_from_object(made), namespace="team-a", uid="u-1", recipe_source=None)
    assert str(resolved.reward_model_path) == place.replace("pvc://", "/areal/claims/")


def test_the_job_on_the_cluster_says_what_its_author_said_and_is_one_that_the_cluster_takes(tmp_path):
    job = job_in(tmp_path, "algorithm.advanced.rejection=null", "model.tokenizer=null", "replay.budgetBytes=3Gi")
    made = on_cluster(job, "team-a", "digits-run", trees_of(job, tmp_path), ("digits-recipe", "recipe.py"), "custom")
    spec = made["spec"]
    assert made["metadata"] == {"name": "digits", "namespace": "team-a"}
    assert spec["model"].keys() == {"uri"}
    assert spec["recipe"] == {"configMap": {"name": "digits-recipe", "key": "recipe.py"}}
    assert spec["reward"] == {"verifier": "custom"}
    assert spec["optimizer"]["learningRate"] == 1e-4
    assert spec["algorithm"]["advanced"]["rejection"] is None
    assert spec["replay"] == {"budgetBytes": "3Gi"}, "as it was written"
    assert "trainer" not in spec
    read = job_from_object(made)
    assert [each for each in check(read) if each.severity is Severity.ERROR] == []
    assert resolve_for_pods(read, namespace="team-a", uid="5a", recipe_source=RECIPE).verifier == "custom"


def test_nulls_that_say_nothing_are_not_sent_wherever_they_stand(tmp_path):
    rules = "failurePolicy.rules=[{name: a, action: FailJob, onExitCodes: null, roles: null}]"
    job = job_in(tmp_path, rules, "generation.engine.type=null", "podTemplate.trainer={labels: null}", "storage=null")
    spec = on_cluster(job, "team-a", "digits-run", [], None, None)["spec"]
    assert spec["failurePolicy"] == {"rules": [{"name": "a", "action": "FailJob"}]}
    assert spec["generation"] == {"engine": {}}
    assert spec["podTemplate"] == {"trainer": {}}
    assert "storage" not in spec


def test_a_verifier_that_was_named_stays(tmp_path):
    made = on_cluster(job_in(tmp_path, "reward.verifier=exact"), "a", "c", [], None, "custom")
    assert made["spec"]["reward"] == {"verifier": "exact"}


def test_a_missing_and_an_empty_source_are_named_with_the_fix(tmp_path):
    job = job_in(tmp_path, "dataset.train.jsonl=nowhere.jsonl")
    with pytest.raises(ConfigError, match=r"'nowhere\.jsonl' is not there") as caught:
        local_sources(job, tmp_path)
    assert caught.value.fix == "Correct dataset.train.jsonl."
    (tmp_path / "void").mkdir()
    with pytest.raises(ConfigError, match=r"model\.path names, holds no files"):
        trees_of(job_in(tmp_path, "model.path=void"), tmp_path)


def test_digesting_tells_how_far_it_is(tmp_path):
    write_job(tmp_path)
    sources = local_sources(job_in(tmp_path), tmp_path)
    told: list[int] = []
    trees = digest_all(sources, "inputs", told.append)
    assert sum(told) == inputs.total_size(sources) == sum(tree.size for tree in trees)


def test_each_of_several_sources_is_sent_a_pattern_with_the_files_that_fit_it(tmp_path):
    sources = "[{jsonl: train.jsonl, weight: 2}, {huggingFace: {path: 'shards/*.jsonl'}}, {jsonl: pvc://sets/a.jsonl}]"
    job = job_in(tmp_path, f"dataset.train={{sources: {sources}}}")
    (tmp_path / "shards").mkdir()
    for name in ("1.jsonl", "2.jsonl", "notes.md"):
        (tmp_path / "shards" / name).write_text('{"prompt": "1", "answer": "1"}\n')
    trees = trees_of(job, tmp_path)
    assert [file.path for file in trees[-1].files] == ["1.jsonl", "2.jsonl"]
    made = on_cluster(job, "team-a", "digits-run", trees, ("digits-recipe", "recipe.py"), "custom")
    first, second, third = made["spec"]["dataset"]["train"]["sources"]
    assert first["jsonl"].startswith("pvc://digits-run/inputs/train-")
    assert first["weight"] == 2
    assert second["huggingFace"]["path"].endswith("/*.jsonl")
    assert third == {"jsonl": "pvc://sets/a.jsonl"}
    recipe = "def reward(**row):\n    return 1.0\n"
    resolved = resolve_for_pods(job_from_object(made), namespace="team-a", uid="u-1", recipe_source=recipe)
    places = [source.jsonl or source.hugging_face.path for source in resolved.dataset.named.values()]
    assert all(place.startswith("/areal/claims/") for place in places[:3])


@pytest.mark.parametrize(
    ("written", "kept"),
    [((), {"requests": {"memory": "150Gi"}, "limits": {"memory": "150Gi"}}),
     (("podTemplate.trainer.resources.limits.memory=256Gi",), {"requests": {}, "limits": {"memory": "256Gi"}})],
)  # fmt: skip
def test_a_trainers_pod_asks_for_the_memory_of_the_plan_unless_the_job_names_some(tmp_path, written, kept):
    job = job_in(tmp_path, *written)
    made = on_cluster(job, "a", "c", [], None, None, {"trainer": 150 << 30})
    assert made["spec"]["podTemplate"]["trainer"]["resources"] == kept
