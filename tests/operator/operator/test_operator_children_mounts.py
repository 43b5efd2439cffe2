"""What each role's pod sees of volumes and Secrets: no more than the role needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal_operator.operator.children import JobBlueprint, access_secret, prepare_job
from areal_operator.operator.children.pods import pod_template
from support.cluster_jobs import CPU_RUNTIME, large_wanted, quickstart, quickstart_wanted, wanted

Json = dict[str, Any]


def main_of(template: Json) -> Json:
    found: Json = next(c for c in template["spec"]["containers"] if c["name"] == "main")
    return found


def mounted(w: JobBlueprint, role: Role) -> dict[str, str]:
    """Path → what is there: `volume:subPath`, and `ro` when it can't be written."""
    found = {}
    for mount in main_of(pod_template(w, role))["volumeMounts"]:
        place = mount["name"] + (f":{mount['subPath']}" if "subPath" in mount else "")
        found[mount["mountPath"]] = f"{place} ro" if mount.get("readOnly") else place
    return found


def test_workers_reach_nothing_of_the_run_directory_but_the_recipe_and_their_trajectories() -> None:
    run = "run:rljobs/digits-5f0c9a52"
    assert mounted(quickstart_wanted(), Role.WORKER) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run/recipe": f"{run}/recipe ro",
        "/areal/run/trajectories": f"{run}/trajectories",
        "/areal/claims/inputs/digits/model": "claim-0:digits/model ro",
    }


def test_a_generation_pod_reads_weights_and_the_model_and_writes_nothing_that_lasts() -> None:
    run = "run:rljobs/digits-5f0c9a52"
    assert mounted(quickstart_wanted(), Role.GENERATION) == {
        "/tmp": "tmp",
        "/dev/shm": "shm",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run/weights": f"{run}/weights ro",
        "/areal/claims/inputs/digits/model": "claim-0:digits/model ro",
    }


def test_a_server_that_fetches_mounts_no_volume_and_who_hands_it_files_reads_them_alone() -> None:
    values = quickstart()
    values["spec"]["weightSync"] = {"servers": "Fetch"}
    w = wanted(values, CPU_RUNTIME)
    own = {"/tmp": "tmp", "/areal/job": "job ro", "/areal/access": "access ro"}
    assert mounted(w, Role.GENERATION) == {**own, "/dev/shm": "shm"}
    claims = [one for one in pod_template(w, Role.GENERATION)["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert claims == []
    assert mounted(w, Role.WEIGHTS) == {
        **own,
        "/areal/run/weights": "run:rljobs/digits-5f0c9a52/weights ro",
        "/areal/claims/inputs/digits/model": "claim-0:digits/model ro",
    }
    assert w.resolved.endpoints.weights == f"digits-weights.{w.resolved.namespace}.svc:9000"
    assert Role.WEIGHTS not in quickstart_wanted().roles


def test_only_pods_that_copy_a_run_see_the_secret_of_its_store() -> None:
    values = quickstart()
    values["spec"]["storage"] = {
        **values["spec"].get("storage", {}),
        "store": "s3://models/rl",
        "storeSecret": "rl-store",
    }
    w = wanted(values, CPU_RUNTIME)
    assert str(w.resolved.store_credentials) == "/areal/store"
    assert w.resolved.store_address == f"s3://models/rl/{w.resolved.namespace}/digits-5f0c9a52"
    copies = (Role.ARCHIVE, Role.PREPARE, Role.FINISH)
    for role in copies:
        assert mounted(w, role)["/areal/store"] == "store ro"
        secrets = {one["secret"]["secretName"] for one in pod_template(w, role)["spec"]["volumes"] if "secret" in one}
        assert secrets == {"rl-store"}
    assert mounted(w, Role.ARCHIVE)["/areal/run"] == "run:rljobs/digits-5f0c9a52 ro"
    for role in set(w.roles) - set(copies):
        assert "/areal/store" not in mounted(w, role)
        assert "rl-store" not in str(pod_template(w, role))
    assert Role.ARCHIVE not in quickstart_wanted().roles


def hub_wanted() -> JobBlueprint:
    """The quickstart with a private model of the hub."""
    values = quickstart()
    values["spec"]["model"] = {"uri": "hf://team/private@main", "tokenSecret": {"name": "hub", "key": "read"}}
    return wanted(values, CPU_RUNTIME)


def test_a_model_of_the_hub_is_read_from_the_run_directory_by_who_needs_it() -> None:
    w = hub_wanted()
    where = "/areal/run/start-model"
    assert str(w.resolved.model_path) == str(w.resolved.tokenizer_path) == where
    for role in (Role.GENERATION, Role.WORKER):
        assert mounted(w, role)[where] == "run:rljobs/digits-5f0c9a52/start-model ro"
    for role in (Role.TRAINER, Role.PREPARE):
        assert mounted(w, role)["/areal/run"] == "run:rljobs/digits-5f0c9a52"
    assert where not in mounted(w, Role.REWARD_CUSTOM)
    assert where not in mounted(quickstart_wanted(), Role.GENERATION)


def test_a_reward_model_of_the_hub_is_read_by_the_pod_that_scores_and_by_no_other() -> None:
    values = quickstart()
    values["spec"]["reward"] = {"verifier": "model", "model": {"path": "hf://team/scores"}}
    values["spec"].pop("recipe", None)
    w = wanted(values, CPU_RUNTIME)
    where = "/areal/run/reward-model"
    assert str(w.resolved.reward_model_path) == where
    assert mounted(w, Role.REWARD_MODEL)[where] == "run:rljobs/digits-5f0c9a52/reward-model ro"
    assert where not in mounted(w, Role.WORKER)


def test_only_the_pod_that_downloads_sees_the_hub_s_token() -> None:
    w = hub_wanted()
    assert _secrets(w, Role.PREPARE) == {"hub": ["hub-token"]}
    told = main_of(pod_template(w, Role.PREPARE))["env"]
    assert {"name": "HF_TOKEN_PATH", "value": "/areal/access/hub-token"} in told
    for role in w.roles:
        assert "hub" not in _secrets(w, role)
        assert "HF_TOKEN_PATH" not in {variable["name"] for variable in main_of(pod_template(w, role))["env"]}


def test_the_recipe_s_reward_reads_the_recipe_only() -> None:
    assert mounted(quickstart_wanted(), Role.REWARD_CUSTOM) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run/recipe": "run:rljobs/digits-5f0c9a52/recipe ro",
    }


def test_a_built_in_verifier_sees_no_volume_of_the_run() -> None:
    values = quickstart()
    values["spec"]["reward"] = {"verifier": "exact"}
    assert mounted(wanted(values, CPU_RUNTIME), Role.REWARD) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
    }


def test_redis_sees_its_configuration_its_access_rules_and_its_data() -> None:
    assert mounted(quickstart_wanted(), Role.REDIS) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/data": "data",
    }


def test_controller_and_trainer_have_the_whole_run_directory() -> None:
    for role in (Role.CONTROLLER, Role.TRAINER):
        assert mounted(quickstart_wanted(), role)["/areal/run"] == "run:rljobs/digits-5f0c9a52"


def test_prepare_sees_every_named_claim_whole_and_the_recipe_s_config_map() -> None:
    assert mounted(quickstart_wanted(), Role.PREPARE) == {
        "/tmp": "tmp",
        "/areal/job": "job ro",
        "/areal/recipe": "recipe ro",
        "/areal/run": "run:rljobs/digits-5f0c9a52",
        "/areal/claims/inputs": "claim-0 ro",
    }


def test_a_claim_that_is_the_run_s_and_an_input_s_is_one_volume() -> None:
    assert mounted(large_wanted(), Role.TRAINER) == {
        "/tmp": "tmp",
        "/dev/shm": "shm",
        "/areal/job": "job ro",
        "/areal/access": "access ro",
        "/areal/run": "run:rljobs/gsm8k-grpo-5f0c9a52",
        "/areal/claims/models/qwen3-8b": "claim-0:qwen3-8b ro",  # holds the tokenizer, too
        "/areal/claims/shared/hooks.py": "run:hooks.py ro",
    }


def _secrets(w: JobBlueprint, role: Role) -> dict[str, list[str]]:
    """Secret → the files that a role gets of it."""
    found: dict[str, list[str]] = {}
    for volume in pod_template(w, role)["spec"]["volumes"]:
        assert "secret" not in volume
        for source in volume.get("projected", {}).get("sources", []):
            assert source["secret"]["items"], "without items a pod would see the whole Secret"
            found[source["secret"]["name"]] = [item["path"] for item in source["secret"]["items"]]
    return found


@pytest.mark.parametrize(
    ("role", "files"),
    [
        (Role.CONTROLLER, ["digests.json", "controller.password"]),
        (Role.TRAINER, ["token.trainer", "digests.json", "trainer.password"]),
        (Role.WORKER, ["token.worker", "digests.json", "session.key", "worker.password"]),
        (Role.GENERATION, ["token.generation", "digests.json"]),
        (Role.REWARD_CUSTOM, ["digests.json"]),
        (Role.REDIS, ["users.acl"]),
    ],
)
def test_a_role_gets_its_own_items_of_the_secret_only(role: Role, files: list[str]) -> None:
    w = quickstart_wanted()
    assert _secrets(w, role) == {"digits-access": files}
    keys = access_secret(w)["data"]
    assert set(files) <= set(keys)
    assert _secrets(replace(w, secrets=keys), role) == {"digits-access": files}


@pytest.mark.parametrize(
    ("role", "files"),
    [(Role.WORKER, ["token", "worker.password"]), (Role.REWARD_CUSTOM, ["token"]), (Role.REDIS, ["users.acl"])],
)
def test_a_job_of_an_older_version_keeps_its_one_token(role: Role, files: list[str]) -> None:
    w = quickstart_wanted(secrets={"token": "old", "worker.password": "a", "users.acl": "b"})
    assert _secrets(w, role) == {"digits-access": files}
    again = access_secret(w)["data"]
    assert "token" in again
    assert not [key for key in again if key.startswith("token.") or key in ("digests.json", "session.key")]


@pytest.mark.parametrize("role", [Role.PREPARE, Role.FINISH])
def test_tools_get_no_secret(role: Role) -> None:
    assert _secrets(quickstart_wanted(), role) == {}


def test_with_an_external_redis_a_role_gets_its_own_url_only() -> None:
    w = large_wanted()
    assert _secrets(w, Role.WORKER) == {
        "gsm8k-grpo-access": ["token.worker", "digests.json", "session.key"],
        "our-redis": ["worker.url"],
    }
    assert _secrets(w, Role.GENERATION) == {"gsm8k-grpo-access": ["token.generation", "digests.json"]}
    assert str(w.resolved.redis_urls["worker"]) == "/areal/access/worker.url"


def test_no_secret_is_in_the_environment() -> None:
    for role in quickstart_wanted().roles:
        for variable in main_of(pod_template(quickstart_wanted(), role))["env"]:
            assert "secretKeyRef" not in variable.get("valueFrom", {})


def test_the_run_directory_is_made_by_the_user_who_writes_to_it() -> None:
    job = prepare_job(quickstart_wanted())["spec"]["template"]
    maker = job["spec"]["initContainers"][0]
    assert maker["command"] == [
        "mkdir", "-p", "-m", "2775", "/areal/volume/rljobs", "/areal/volume/rljobs/digits-5f0c9a52",
    ]  # fmt: skip
    assert maker["volumeMounts"] == [{"name": "run", "mountPath": "/areal/volume"}]
    assert maker["image"] == main_of(job)["image"]
