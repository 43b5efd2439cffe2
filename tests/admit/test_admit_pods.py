"""A job for pods: what is decided, what is refused, and the row of each pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from areal.admit.cluster import ClusterRefusal, redis_files, resolve_for_pods, roles_of
from areal.plan import ResolvedJob, RoleHost
from areal.plan.cluster_names import Role, workload
from areal.plan.redis_conf import login_of
from areal.plan.role_specs import spec_of
from areal.plan.table import role_row
from areal.spec import RLJob, load_job

RECIPE = "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1.0\n"
PLACE = RoleHost(
    "python", ("areal-role",), "redis-server", interface="", scratch=Path("/tmp"), job_file=Path("/j.json")
)

SPEC: dict[str, Any] = {
    "model": {"uri": "pvc://models/qwen/8b"},
    "recipe": {"configMap": {"name": "recipes", "key": "mine.py"}},
    "dataset": {"train": {"jsonl": "/data/train.jsonl"}, "evaluation": {"jsonl": "pvc://sets/held/out.jsonl"}},
    "rollout": {"maxSampleTokens": 64, "sampling": {"maxNewTokens": 12}, "workers": 3},
    "algorithm": {"name": "GRPO", "batchSize": 8, "maxSteps": 4},
    "optimizer": {"learningRate": 1e-4},
    "generation": {"replicas": 2},
    "trainer": {"replicas": 2, "procPerNode": 4},
    "reward": {"replicas": 5},
}


def job(**changes: Any) -> RLJob:
    spec = {name: block for name, block in {**SPEC, **changes}.items() if block is not None}
    metadata = {"name": "math", "labels": {"a": "b"}, "annotations": {"c": "d"}}
    return RLJob.model_validate(
        {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec}
    )


def plan(source: str | None = RECIPE, **changes: Any) -> ResolvedJob:
    return resolve_for_pods(job(**changes), namespace="team", uid="1234abcd-ffff", recipe_source=source)


def test_pods_find_everything_by_name_and_mount():
    resolved = plan()
    assert resolved.model_path == resolved.tokenizer_path == Path("/areal/claims/models/qwen/8b")
    assert resolved.recipe_source == Path("/areal/recipe/mine.py")
    assert resolved.recipe_path == Path("/areal/run/recipe/mine.py")
    assert resolved.dataset.train.jsonl == "/data/train.jsonl"
    assert resolved.dataset.evaluation.jsonl == "/areal/claims/sets/held/out.jsonl"
    ends = resolved.endpoints
    assert ends.controller == "math-controller.team.svc:9000"
    assert ends.redis == "math-redis.team.svc:6379"
    assert (ends.reward, ends.reward_custom) == (None, "math-reward-custom.team.svc:9000")
    assert ends.rendezvous == "math-trainer-0.math-trainer.team.svc:29500"
    assert resolved.access == Path("/areal/access")
    assert resolved.token_path == Path("/areal/access/token"), "where an older version's pods mounted it"
    assert resolved.redis_users["worker"] == Path("/areal/access/worker.password")
    assert (resolved.bind, resolved.namespace, resolved.patience_s) == ("0.0.0.0", "team", 3600.0)
    assert resolved.uid == "1234abcd-ffff"
    assert ResolvedJob.model_validate_json(resolved.model_dump_json()) == resolved


def test_what_is_fetched_from_a_store_has_a_place_in_the_run():
    rows = {
        "train": {"jsonl": "s3://sets/rows/train.jsonl"},
        "evaluation": {"huggingFace": {"path": "gs://sets/*.parquet"}},
    }
    resolved = plan(model={"uri": "s3://models/qwen/8b"}, dataset=rows)
    assert resolved.model_path == resolved.tokenizer_path == Path("/areal/run/start-model")
    assert resolved.dataset.train.jsonl == "/areal/run/fetched/dataset.train/train.jsonl"
    assert resolved.dataset.evaluation is not None
    assert resolved.dataset.evaluation.path == "/areal/run/fetched/dataset.evaluation/*.parquet"


def test_what_says_nothing_about_the_run_changes_no_pod():
    labelled = job(suspend=True)
    labelled.metadata.labels["x"] = "y"
    other = resolve_for_pods(labelled, namespace="team", uid="1234abcd-ffff", recipe_source=RECIPE)
    assert other.model_dump_json() == plan().model_dump_json()


def test_a_job_has_the_pods_that_it_needs_in_order():
    assert roles_of(plan()) == {
        Role.REDIS: 1,
        Role.REWARD_CUSTOM: 5,
        Role.CONTROLLER: 1,
        Role.GENERATION: 2,
        Role.WORKER: 3,
        Role.TRAINER: 2,
    }
    alone = roles_of(plan("class Mine: ..."))
    assert not {Role.REWARD, Role.REWARD_CUSTOM} & set(alone)
    assert Role.REWARD in roles_of(plan(recipe=None, reward={"verifier": "math"}))
    external = plan(replay={"backend": "External", "external": {"secretName": "mine"}})
    assert Role.REDIS not in roles_of(external)


@pytest.mark.parametrize(
    ("changes", "source", "verifier"),
    [
        ({}, RECIPE, "custom"),
        ({}, "class Mine: ...", None),
        ({"reward": {"verifier": "exact"}, "recipe": None}, None, "exact"),
        ({"recipe": {"file": "/app/recipe.py"}}, None, "custom"),
        ({"recipe": {"file": "/app/r.py"}, "rollout": {**SPEC["rollout"], "workflow": "mine"}}, None, None),
        ({"recipe": {"file": "pvc://r/r.py"}, "reward": {"verifier": "custom"}}, None, "custom"),
    ],
)
def test_who_scores(changes, source, verifier):
    assert plan(source, **changes).verifier == verifier


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"model": {"path": "models/tiny"}}, "LocalPath", "spec.model.path"),
        ({"reward": {"verifier": "model", "model": {"path": "scores"}}}, "LocalPath", "reward.model.path is 'scores'"),
        ({"reward": {"verifier": "code", "code": {"minTier": "T0", "allowUnsafe": True}}}, "NotAvailable", "sandbox"),
        ({"model": {"uri": "pvc://models"}, "recipe": {"file": "recipe.py"}}, "LocalPath", "spec.recipe.file"),
        ({"model": {"uri": "pvc://models/../x"}}, "InvalidSpec", "names no path"),
        ({"model": {"uri": "pvc:///x"}}, "InvalidSpec", "names no path"),
        ({"dataset": {"train": {"jsonl": "data.jsonl"}}}, "LocalPath", "spec.dataset.train.jsonl"),
        ({"dataset": {"train": {"huggingFace": {"path": "./set"}}}}, "LocalPath", "huggingFace.path"),
        ({"trainer": {"hooks": "~/hooks.py"}}, "LocalPath", "spec.trainer.hooks"),
        (
            {"placement": "shared", "podTemplate": {"generation": {"labels": {"a": "b"}}}},
            "SharedPlacement",
            "the trainer's pod",
        ),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_with_its_reason_and_a_fix(changes, reason, words):
    with pytest.raises(ClusterRefusal) as caught:
        plan(**changes)
    assert caught.value.reason == reason
    assert words in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(("source", "reason"), [(None, "RecipeNotFound"), ("def (", "InvalidSpec")])
def test_a_recipe_that_is_not_there_or_no_python_is_refused(source, reason):
    with pytest.raises(ClusterRefusal) as caught:
        plan(source)
    assert caught.value.reason == reason


def test_a_name_on_the_hub_stays_one():
    resolved = plan(dataset={"train": {"huggingFace": {"path": "openai/gsm8k"}}})
    assert resolved.dataset.train.hugging_face.path == "openai/gsm8k"


def test_redis_listens_to_all_pods_and_knows_its_users():
    conf, acl = redis_files(plan(), {"controller": "a", "trainer": "b", "worker": "c"})
    lines = dict(line.split(" ", 1) for line in conf.splitlines())
    assert (lines["dir"], lines["aclfile"]) == ('"/data"', '"/areal/access/users.acl"')
    assert (lines["bind"], lines["port"], lines["protected-mode"]) == ("* -::*", "6379", "yes")
    assert [line.split()[1] for line in acl.splitlines()] == ["default", "controller", "trainer", "worker"]
    assert "{1234abcd-ffff}" in acl


def test_the_row_of_a_pod_waits_for_others_and_its_gang_for_an_epoch():
    resolved = plan()
    rows = {role: role_row(resolved, role.value, 1, PLACE) for role in roles_of(resolved) if role is not Role.REDIS}
    for role, row in rows.items():
        assert row.depends_on == []
        assert row.start_deadline_s >= 3600
        assert row.ports == spec_of(role).pod_ports
        assert row.env["AREAL_NAMESPACE"] == "team"
        assert row.env["HOME"] == "/tmp"
        assert row.env["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/")
        assert row.env["AREAL_INDEX"] == "1"
        assert row.command[row.command.index("--job") + 1] == "/j.json"
    assert rows[Role.GENERATION].name == "generation-1"
    trainer = rows[Role.TRAINER]
    assert (trainer.name, trainer.first_start, trainer.restart, trainer.ready) == (
        "trainer-1",
        "epoch",
        "epoch",
        "none",
    )
    assert role_row(resolved, "trainer", 0, PLACE).ready == "grpc"
    assert {row.first_start for role, row in rows.items() if role is not Role.TRAINER} == {"at_once"}
    assert " ".join(trainer.command).startswith(
        "python -m areal_trainer.torchrun --nnodes 2 --nproc-per-node 4 --max-restarts 0 --node-rank 1 "
        "--rdzv-id 1234abcd-ffff --master-addr math-trainer-0.math-trainer.team.svc --master-port 29500 "
        "-m areal_trainer.main"
    )
    assert "GLOO_SOCKET_IFNAME" not in trainer.env


def test_a_fleet_may_grow_beyond_what_the_job_said_at_first():
    assert role_row(plan(), "generation", 17, PLACE).name == "generation-17"


def test_logins_of_a_redis_of_ones_own_and_of_another(tmp_path):
    own = plan().model_copy(update={"redis_users": {"worker": tmp_path / "worker.password"}})
    (tmp_path / "worker.password").write_text("secret\n")
    assert vars(login_of(own, "worker")) == {
        "address": "math-redis.team.svc:6379", "username": "worker", "password": "secret",
    }  # fmt: skip
    assert "secret" not in repr(login_of(own, "worker"))
    other = plan(replay={"backend": "External", "external": {"secretName": "mine"}})
    assert other.endpoints.redis is None
    assert other.redis_urls["trainer"] == Path("/areal/access/trainer.url")
    other = other.model_copy(update={"redis_urls": {"trainer": tmp_path / "trainer.url"}})
    (tmp_path / "trainer.url").write_text("rediss://me:secret@redis:6380/2\n")
    login = login_of(other, "trainer")
    assert (login.address, login.username) == ("rediss://me:secret@redis:6380/2", None)
    assert "secret" not in repr(login)


def test_names_fit_a_label():
    longest = "a" * 40
    assert all(len(workload(longest, role)) <= 63 for role in Role)
    revision = "-0123456789"  # Kubernetes labels a StatefulSet's pods with its name and a hash
    sets = [role for role in Role if spec_of(role).workload == "StatefulSet"]
    assert all(len(workload(longest, role) + revision) <= 63 for role in sets)


def test_the_examples_become_jobs_for_pods_once_their_files_are_elsewhere():
    there = {"qwen2.5-7b-gsm8k", "qwen3-32b-math", "lora-8b"}  # of a cluster alone: their files are in volumes
    for path in Path("examples").glob("*.yaml"):
        if path.stem in there:
            assert resolve_for_pods(load_job(path), namespace="team", uid="u", recipe_source=RECIPE)
            continue
        with pytest.raises(ClusterRefusal, match="your machine"):
            resolve_for_pods(load_job(path), namespace="team", uid="u", recipe_source=None)


@pytest.mark.parametrize(
    ("path", "found"), [("pvc://models/scores", "/areal/claims/models/scores"), ("/models/scores", "/models/scores")]
)
def test_a_reward_model_is_read_from_a_volume_or_the_image_by_a_role_of_its_own(path, found):
    job = plan(recipe=None, reward={"verifier": "model", "model": {"path": path}, "replicas": 2})
    assert str(job.reward_model_path) == found
    assert job.endpoints.reward == "math-reward-model.team.svc:9000"
    assert roles_of(job)[Role.REWARD_MODEL] == 2
    assert not {Role.REWARD, Role.REWARD_CUSTOM} & roles_of(job).keys()


def test_boxes_have_one_pod_that_workers_find_by_its_service():
    job = plan(rollout={"boxes": {"maxConcurrent": 64}})
    assert job.endpoints.boxes == "math-boxes.team.svc:9000"
    assert roles_of(job)[Role.BOXES] == 1
    assert plan().endpoints.boxes is None
