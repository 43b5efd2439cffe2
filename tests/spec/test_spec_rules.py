"""Rules: declared once, with the arithmetic; their boundaries; what depends on facts."""

from __future__ import annotations

import re

import pytest
from areal.spec import RULES, Facts, RLJob, Severity, check, load_job, numbers
from areal.spec.quantity import show_bytes
from areal.yaml_file.table import read_table
from hypothesis import given
from hypothesis import strategies as st
from spec_corpus import CORPUS

QUICKSTART = CORPUS / "accepted" / "quickstart.yaml"


def job(*overrides: str) -> RLJob:
    return load_job(QUICKSTART, overrides)


def broken(*overrides: str, facts: Facts | None = None) -> dict[str, str]:
    return {finding.rule: finding.message for finding in check(job(*overrides), facts)}


def test_each_rule_is_declared_once_and_completely():
    ids = {rule.id for rule in RULES}
    assert len(ids) == len(RULES)
    told = [id for fixes in read_table("areal.spec", "rules.yaml").values() for id in fixes]
    assert len(set(told)) == len(told)
    assert set(told) <= ids
    for rule in RULES:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)
        assert rule.says.endswith(".")
        assert rule.fix.endswith(".")
        assert rule.cel is None or "self." in rule.cel
        assert rule.field.startswith(("spec.", "metadata."))


def test_errors_come_before_warnings():
    severities = [finding.severity for finding in check(job("algorithm.groupSize=1", "algorithm.maxSteps=3"))]
    assert severities == sorted(severities, key=lambda severity: severity is Severity.WARNING)
    assert {Severity.ERROR, Severity.WARNING} == set(severities)


@pytest.mark.parametrize(
    ("overrides", "rule", "arithmetic"),
    [
        (["rollout.maxConcurrentRollouts=20"], "batch-cannot-fill", "4 rounds"),
        (["rollout.maxConcurrentRollouts=20"], "batch-cannot-fill", "64·2 = 128"),
        (["weightSync.mode=Group", "trainer.lora.rank=8"], "group-mode", "read from the volume"),
        (["weightSync.intervalSteps=4"], "publish-interval", "ahead + 1 = 3"),
        (["algorithm.advanced.decoupled=false"], "stale-without-decoupled", "η = 2 > 1"),
        (["rollout.maxSampleTokens=8192", "replay.budgetBytes=100Mi"], "bytes-over-budget", "3·64·8·8192·8 = 96 MiB"),
        (["rollout.maxSampleTokens=8192", "replay.budgetBytes=100Mi"], "bytes-over-budget", "80 % of 100 MiB = 80 MiB"),
        (["rollout.maxSampleTokens=8192", "replay.budgetBytes=400Mi"], "checkpoint-forced", "every 8 steps"),
        (["trainer.procPerNode=4", "trainer.mesh.replicate=2", "trainer.mesh.tensor=4"], "mesh", "each in parts of 4"),
        (["trainer.replicas=2", "trainer.mesh.tensor=2"], "tensor-within-node", "don't make groups of 2"),
        (["trainer.procPerNode=4", "trainer.mesh.context=8"], "mesh", "each in parts of 8"),
        (["trainer.procPerNode=4", "trainer.mesh.replicate=3"], "mesh", "1·4 = 4 processes don't split into 3"),
        (["trainer.procPerNode=2", "trainer.standby=true"], "standby-of-one-process", "a node has 2 processes"),
        (["algorithm.groupSize=1"], "group-size", "reward − mean = 0"),
    ],
)
def test_messages_show_the_arithmetic(overrides, rule, arithmetic):
    assert arithmetic in broken(*overrides)[rule]


@given(eta=st.integers(0, 8), interval=st.integers(1, 12))
def test_publication_deadlock_exactly_when_the_interval_exceeds_the_window(eta, interval):
    spec = job().model_copy()
    changed = spec.model_copy(
        update={
            "spec": spec.spec.model_copy(
                update={
                    "algorithm_block": spec.spec.algorithm.model_copy(update={"max_staleness": eta}),
                    "weight_sync": spec.spec.weight_sync.model_copy(update={"interval_steps": interval}),
                }
            )
        }
    )
    # the newest version on servers is kI; steps up to kI + η are admitted; version (k+1)I needs step (k+1)I − 1
    stands_still = interval - 1 > eta
    assert ("publish-interval" in {finding.rule for finding in check(changed)}) == stands_still


@given(tokens=st.integers(64, 4096), budget=st.integers(1 << 20, 1 << 32), interval=st.integers(1, 200))
def test_a_job_within_budget_holds_its_window_until_the_checkpoint_that_is_said(tokens, budget, interval):
    given_job = job()
    replay = given_job.spec.replay.model_copy(update={"budget_bytes": budget})
    rollout = given_job.spec.rollout.model_copy(update={"max_sample_tokens": tokens})
    checkpoint = given_job.spec.checkpoint.model_copy(update={"interval_steps": interval})
    changed = given_job.model_copy(
        update={
            "spec": given_job.spec.model_copy(update={"replay": replay, "rollout": rollout, "checkpoint": checkpoint})
        }
    )
    rules = {finding.rule for finding in check(changed)}
    step, ahead = numbers.bytes_a_step(changed), numbers.ahead(changed)
    assert ("bytes-over-budget" in rules) == ((ahead + 2) * step > int(budget * 0.8))
    if "bytes-over-budget" not in rules:
        every = numbers.forced_checkpoint_every(changed)
        assert (every + ahead + 1) * step <= budget * 0.8
        assert ("checkpoint-forced" in rules) == (every < interval)


def test_the_budget_counts_the_routes_of_a_mixture():
    given = ("rollout.maxSampleTokens=8192", "replay.budgetBytes=200Mi")
    assert "bytes-over-budget" not in broken(*given)
    found = broken(*given, facts=Facts(model_route_bytes=384))
    assert "3·64·8·8192·392 = 4.6 GiB" in str(found["bytes-over-budget"])


def test_the_budget_counts_the_images_that_each_sample_brings():
    given = ("rollout.maxSampleTokens=8192", "replay.budgetBytes=200Mi")
    found = broken(*given, facts=Facts(image_bytes=1_000_000))
    assert "(maxSampleTokens·8 + 1000000 of images) B = 3·64·8·(8192·8 + 1000000) = 1.5 GiB" in str(
        found["bytes-over-budget"]
    )


def test_rules_that_need_facts_say_nothing_without_them():
    assert broken("reward.verifier=math") == {}
    assert "two-rewards" in broken("reward.verifier=math", facts=Facts(recipe_defines_reward=True))
    assert broken("reward.verifier=custom", facts=Facts(recipe_defines_reward=True)) == {}
    assert "custom-without-reward" in broken("reward.verifier=custom", facts=Facts(recipe_defines_reward=False))


def test_files_are_looked_for_when_a_directory_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    beside = tmp_path / "jobs"
    (beside / "models" / "digits-1m").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").touch()
    missing = {finding.field: finding for finding in check(job(), base_dir=beside) if finding.rule == "file-missing"}
    assert missing.keys() == {"spec.recipe.file", "spec.dataset.evaluation.jsonl"}
    message = missing["spec.recipe.file"].message
    assert str(tmp_path / "examples" / "digits.py") in message
    assert str(beside / "examples" / "digits.py") in message


def test_a_missing_model_can_be_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = next(finding for finding in check(job(), base_dir=tmp_path) if finding.field == "spec.model.path")
    assert "areal init-model --out models/digits-1m" in model.fix
    assert model.where.startswith(str(QUICKSTART))


def test_a_model_of_the_hub_is_to_be_downloaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = next(each for each in check(job("model.path=Qwen/Qwen3-0.6B"), base_dir=tmp_path) if "model" in each.field)
    assert "`hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B`" in model.fix
    assert "init-model" not in model.fix


def test_the_longest_prompt_is_named_with_its_row():
    facts = Facts(longest_prompt_tokens=500, longest_prompt_place="rows.jsonl:300", prompts_too_long=3)
    found = next(each for each in check(job(), facts) if each.rule == "prompt-too-long")
    assert "the longest prompt, rows.jsonl:300, has 500 tokens" in found.message
    assert "3 rows are too long" in found.message


def test_findings_read_as_a_sentence_with_place_and_fix():
    text = str(check(job("algorithm.groupSize=1"))[0])
    assert text.startswith("error: override algorithm.groupSize=1: spec.algorithm.groupSize: a group of 1")
    assert "[group-size]\n  fix: Set algorithm.groupSize" in text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (2 << 30, "2 GiB"), (3 << 50, "3072 TiB")])
def test_sizes_for_people(size, text):
    assert show_bytes(size) == text


CODE = ("reward.verifier=code",)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (['limits={cpu: "8", memory: 1Gi}'], "has 1 GiB, of which 80 % hold 1 of the 10 programs"),
        (['requests={cpu: "8"}'], "has 4 GiB unless its runtime says otherwise, of which 80 % hold 6 of the 10"),
        (["limits={memory: 1Gi}"], "hold 1 of the 2 programs that its processors could judge at once (512 MiB each)"),
        (["requests={cpu: 2500m, memory: 2Gi}"], None),
        (["requests={cpu: 7500m, memory: 6Gi}"], "has 6 GiB, of which 80 % hold 9 of the 10"),
    ],
)
def test_a_reward_pod_with_less_memory_than_processors_is_said_with_the_arithmetic(overrides, words):
    said = broken(*CODE, *(f"podTemplate.reward.resources.{override}" for override in overrides)).get("code-memory")
    assert (said is None) if words is None else (words in said)


@pytest.mark.parametrize(
    "override", ['limits={cpu: "2", memory: 2Gi}', 'limits={cpu: "4", memory: 4Gi}', "requests={cpu: 500m}"]
)
def test_memory_for_as_many_programs_as_processors_is_nothing_to_say(override):
    assert "code-memory" not in broken(*CODE, f"podTemplate.reward.resources.{override}")


def test_programs_that_are_compiled_or_tested_in_a_cell_beside_them_take_twice_the_memory():
    resources = 'podTemplate.reward.resources.limits={cpu: "4", memory: 4Gi}'
    assert "code-memory" not in broken(*CODE, resources)
    for kind in (["reward.code.language=cpp", "reward.code.minTier=T3"], ["reward.code.format=humaneval"]):
        assert "hold 3 of the 5" in broken(*CODE, *kind, resources)["code-memory"]


def test_pods_that_judge_no_programs_need_no_room_for_any():
    assert "code-memory" not in broken("reward.verifier=exact", "podTemplate.reward.resources.limits={memory: 256Mi}")
