"""Whole files of each framework's shape: units, names, and every key in exactly one list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from areal.convert.convert import convert, job_text, lists
from areal.convert.draft import UNSET
from areal.convert.shell import read_commands
from areal.errors import ConfigError
from areal.spec.check import check
from areal.spec.load import job_from
from areal.spec.rules import Severity
from areal.yaml_file.document import parse_document

FILES = Path(__file__).parent / "files"
GIVEN = {"grpo.sh": ["GPUS=8"]}


def converted(name, *given, rows=None):
    return convert(FILES / name, None, [*GIVEN.get(name, []), *given], rows)


def spec_of(draft):
    return yaml.safe_load(job_text(draft))["spec"]


@pytest.mark.parametrize("name", ["rl.yaml", "grpo.sh", "grpo.py", "ppo_ray.sh", "sft.sh"])
def test_every_key_is_in_exactly_one_list_and_the_job_passes_up_to_its_decisions(name):
    draft = converted(name)
    listed = [key for _, rows in lists(draft) for keys, _ in rows for key in keys if not key.endswith("(not written)")]
    assert sorted(listed) == sorted(draft.foreign.values)
    text = job_text(draft)
    decided = parse_document(
        "\n".join(line for line in text.splitlines() if not line.startswith("# decide:")), Path("job.yaml")
    )
    errors = [finding.rule for finding in check(job_from(decided)) if finding.severity is Severity.ERROR]
    assert errors == []


def test_areal_units_and_levels():
    spec = spec_of(converted("rl.yaml"))
    algorithm, advanced = spec["algorithm"], spec["algorithm"]["advanced"]
    assert (algorithm["maxSteps"], algorithm["batchSize"], algorithm["groupSize"]) == (290, 256, 4)  # 10 × ⌊7473 / 256⌋
    assert (algorithm["maxStaleness"], algorithm["clipLow"], algorithm["rewardScale"]) == (8, 0.4, 10.0)
    assert (advanced["advantageMean"], advanced["advantageStd"], advanced["advantageUnbiased"]) == (
        "group",
        "group",
        True,
    )
    assert (advanced["advantageNormalize"], advanced["rewardBias"]) == ("batch", -0.5)
    assert advanced["rejection"] == {"metric": "ratio", "upper": 5.0}
    assert spec["optimizer"]["warmupSteps"] == 1  # max(1, round(.001 × 290))
    assert spec["rollout"]["maxSampleTokens"] == 2048
    assert (spec["evaluation"]["intervalSteps"], spec["export"]["intervalSteps"]) == (29, 29)
    assert spec["generation"]["engine"]["extraArgs"] == ["--attention-backend", "fa3", "--disable-radix-cache"]
    assert (spec["generation"]["replicas"], spec["trainer"]["gpus"]) == (4, 4)
    assert spec["model"] == {"uri": "hf://Qwen/Qwen2.5-1.5B-Instruct"}


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (["actor.kl_ctl=0.1"], "kl", {"coefficient": 0.1, "as": "reward", "estimator": "k1"}),
        (["actor.use_sapo_loss=true"], "name", "SAPO"),
        (["actor.importance_sampling_level=sequence"], "name", "GSPO"),
        (["actor.m2_threshold=0.04", "actor.eps_clip=0"], "name", "M2PO"),
        (["critic.path=Qwen/Qwen2.5-1.5B-Instruct", "actor.reward_norm=null"], "name", "PPO"),
        (["rollout.max_head_offpolicyness=1000000000"], "maxStaleness", 1000),
        (["total_train_steps=50"], "maxSteps", 50),
    ],
)
def test_areal_names_follow_the_keys(change, field, value):
    assert spec_of(converted("rl.yaml", *change))["algorithm"][field] == value


def test_a_default_there_that_is_another_here_is_written_and_listed():
    draft = converted("rl.yaml")
    entry = next(entry for entry in draft.differs if entry.key == "actor.reward_clip (not written)")
    assert (entry.to, entry.value) == ("algorithm.advanced.rewardClip", 20.0)


def test_a_group_size_that_is_not_the_groups_needs_a_decision():
    draft = converted("rl.yaml", "actor.reward_norm.group_size=1")
    assert any("group_size is 1 there" in what for what in draft.decisions)


def test_areals_switches_of_before_are_not_lost(tmp_path):
    text = re.sub(r"  (reward_norm|adv_norm|rejection_sampling):.*\n", "", (FILES / "rl.yaml").read_text())
    (tmp_path / "old.yaml").write_text(text)
    switches = [f"actor.{name}=true" for name in ("adv_norm", "group_reward_norm", "dynamic_sampling")]
    backends = ["allocation_mode=sglang.d12p1t1+d4p1t1", "rollout.backend=null", "actor.backend=null"]
    draft = convert(tmp_path / "old.yaml", None, [*switches, *backends, "actor.behav_imp_weight_cap=3.0"])
    algorithm = spec_of(draft)["algorithm"]
    assert algorithm["zeroVariance"] == "filter"
    assert algorithm["advanced"]["advantageMean"] == algorithm["advanced"]["advantageStd"] == "group"
    assert algorithm["advanced"]["advantageNormalize"] == "batch"
    assert algorithm["advanced"]["rejection"] == {"metric": "ratio", "upper": 3.0}
    assert (spec_of(draft)["generation"]["replicas"], spec_of(draft)["trainer"]["gpus"]) == (12, 4)


@pytest.mark.parametrize(
    ("name", "key", "asked"),
    [
        ("rl.yaml", "actor.some_new_loss=true", True),
        ("grpo.sh", "actor_rollout_ref.actor.some_new_loss=true", True),
        ("grpo.sh", "data.some_weight=2", True),
        ("grpo.sh", "data.cache_dir=/tmp", False),
        ("rl.yaml", "actor.some_new_loss=false", False),
    ],
)
def test_an_unknown_key_of_what_is_learned_needs_a_decision(name, key, asked):
    assert any("some_" in what or "cache" in what for what in converted(name, key).decisions) == asked


def test_verl_units():
    draft = converted("grpo.sh")
    spec = spec_of(draft)
    algorithm = spec["algorithm"]
    assert (algorithm["batchSize"], algorithm["miniBatches"], algorithm["groupSize"]) == (1024, 4, 8)
    assert algorithm["maxSteps"] == 15 * ((7473 + 7500) // 1024)
    assert algorithm["advanced"] == {"advantageStd": "group", "advantageUnbiased": True, "dualClip": 3.0}
    assert algorithm["kl"] == {"coefficient": 0.001, "as": "loss", "estimator": "k3"}
    assert algorithm["maxStaleness"] == 0
    assert spec["rollout"] == {
        "maxConcurrentRollouts": 1024, "maxSampleTokens": 2560, "sampling": {"maxNewTokens": 2048}
    }  # fmt: skip
    assert spec["dataset"]["longPrompts"] == "drop"
    assert [source["weight"] for source in spec["dataset"]["train"]["sources"]] == [7473.0, 7500.0]
    assert spec["reward"] == {"verifier": "math", "answerField": "reward_model.ground_truth"}
    assert spec["trainer"] == {"gpus": 8, "mesh": {"context": 2}, "microBatchTokens": 7680}
    assert (spec["generation"]["replicas"], spec["placement"]) == (4, "shared")
    assert spec["optimizer"]["weightDecay"] == 0.01
    assert [entry.key for entry in draft.dropped if "unknown" in entry.why] == ["algorithm.own_switch"]
    assert draft.name == "sums"  # of the year nothing is known


def test_gpus_of_several_machines_are_divided_where_verl_shares_them():
    spec = spec_of(converted("grpo.sh", "trainer.nnodes=2"))
    assert (spec["trainer"]["gpus"], spec["trainer"].get("replicas", 1), spec["generation"]["replicas"]) == (8, 1, 4)
    assert "placement" not in spec


def test_areals_shared_gpus_are_shared_here_and_nothing_is_two_versions_old():
    backends = ["rollout.backend=null", "actor.backend=null", "rollout.max_head_offpolicyness=4"]
    shared = converted("rl.yaml", "allocation_mode=sglang:d4p1t2|fsdp:d8", *backends)
    spec = spec_of(shared)
    assert (spec["placement"], spec["trainer"]["gpus"], spec["generation"]["replicas"]) == ("shared", 8, 4)
    assert (spec["algorithm"]["maxStaleness"], spec["rollout"]["ahead"]) == (1, 1)
    several = converted("rl.yaml", "allocation_mode=sglang:d8p1t2|fsdp:d16", *backends)
    assert "placement" not in spec_of(several)
    assert any("on several machines" in what for what in several.decisions)
    servers = converted("rl.yaml", "allocation_mode=sglang:d8p1t2|fsdp:d8", *backends)
    assert "placement" not in spec_of(servers), "servers of 16 GPUs are on two machines"
    assert any("on several machines" in what for what in servers.decisions)


def test_verls_dppo_has_no_second_clip():
    draft = converted("grpo.sh", "actor_rollout_ref.actor.policy_loss.loss_mode=dppo_tv")
    algorithm = spec_of(draft)["algorithm"]
    assert (algorithm["name"], "dualClip" in algorithm["advanced"]) == ("DPPO", False)
    assert [what.split(":")[0] for what in draft.decisions] == ["spec"]  # of the key that nobody knows


def test_what_a_script_takes_from_its_environment_is_refused_by_name():
    with pytest.raises(ConfigError, match=re.escape("$GPUS (for trainer.n_gpus_per_node)")) as error:
        convert(FILES / "grpo.sh")
    assert "GPUS=…" in error.value.fix


def test_folders_that_a_script_finds_beside_itself_are_known(tmp_path):
    folder, script = tmp_path / "examples" / "scripts", str(tmp_path / "examples" / "scripts" / "run.sh")
    lines = "\n".join(
        (
            'A=$(dirname "$0")',
            'B=$(cd "$A/../.." && pwd)',
            'C="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
            "echo $A $B $C $(basename $B/own.parquet) $(ls) $(dirname $B && ls)",
        )
    )
    words = read_commands(lines, {"0": script, "BASH_SOURCE": script})[True][-1]
    assert words[1:5] == [str(folder), str(tmp_path), str(folder), "own.parquet"]
    assert all(UNSET in word for word in words[5:7]), "what a program says stays unknown"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("algorithm.adv_estimator=remax", "algorithm.adv_estimator is remax there"),
        ("actor_rollout_ref.actor.ppo_epochs=2", "used 2 times there"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "loss_mode is clip_cov there"),
        ("actor_rollout_ref.rollout.multi_turn.enable=True", "several turns with tools"),
        ("data.train_batch_size=1000", "1000 / 256 isn't whole"),
    ],
)
def test_verl_without_an_equivalent_needs_a_decision(change, said):
    assert any(said in what for what in converted("grpo.sh", change).decisions)


def test_trl_counts_samples_of_all_processes():
    draft = converted("grpo.py")
    spec = spec_of(draft)
    algorithm = spec["algorithm"]
    assert (algorithm["batchSize"], algorithm["miniBatches"], algorithm["maxSteps"]) == (16, 2, 50)  # 8 × 4 × 4 / 8
    assert (algorithm["lossAggregation"], algorithm["clipLow"], algorithm["clipHigh"]) == ("sequence", 0.1, 0.3)
    assert algorithm["kl"] == {"coefficient": 0.04, "as": "loss", "estimator": "k3"}
    assert algorithm["advanced"]["rejection"] == {
        "metric": "ratio",
        "upper": 3.0,
        "level": "sequence",
        "aggregate": "sum",
    }
    assert algorithm["advanced"]["advantageStd"] == "none"
    assert spec["dataset"]["train"]["huggingFace"] == {"path": "AI-MO/NuminaMath-TIR", "split": "train[:5%]"}
    assert (spec["optimizer"]["learningRate"], spec["trainer"]["gpus"]) == (1e-5, 4)
    assert (spec["placement"], spec["generation"]["replicas"]) == ("shared", 4), "vLLM is in the trainer's processes"
    apart = spec_of(converted("grpo.py", "vllm_mode=server"))
    assert "placement" not in apart
    assert apart["generation"]["replicas"] == 1
    assert "accuracy_reward, long_enough" in draft.recipe


def test_openrlhf_counts_and_its_flat_names():
    draft = converted("ppo_ray.sh")
    spec = spec_of(draft)
    algorithm = spec["algorithm"]
    assert (algorithm["name"], algorithm["batchSize"], algorithm["groupSize"], algorithm["miniBatches"]) == (
        "GRPO",
        128,
        8,
        4,
    )
    assert algorithm["kl"] == {"coefficient": 0.001, "as": "loss", "estimator": "k3"}
    assert (algorithm["clipLow"], algorithm["clipHigh"]) == (0.2, 0.27)
    assert algorithm["maxSteps"] == 20000 // 128
    assert spec["rollout"]["maxSampleTokens"] == 2048
    assert spec["generation"] == {"replicas": 4, "engine": {"type": "sglang", "tensorParallel": 2, "gpus": 2}}
    assert spec["dataset"]["train"]["huggingFace"]["columns"] == {"prompt": "context"}
    assert spec["placement"] == "shared", "all models share the GPUs of one machine there"
    several = converted("ppo_ray.sh", "train.colocate_all=true", "actor.num_nodes=2")
    assert "placement" not in spec_of(several)
    assert any("everything there" in what for what in several.decisions)


def test_a_dropped_key_is_named_without_its_value():
    shown = "\n".join(f"{keys} {said}" for _, rows in lists(converted("ppo_ray.sh")) for keys, said in rows)
    assert "wandb_key" in shown
    assert "hidden" not in shown


def test_a_training_on_fixed_rows():
    spec = spec_of(converted("sft.sh"))
    assert spec["training"] == {
        "name": "SFT",
        "batchSize": 256,
        "maxTokens": 2048,
        "answerField": "response",
        "epochs": 1,
    }
    assert spec["optimizer"]["betas"] == [0.9, 0.95]


@pytest.mark.parametrize("rows", [None, 1000])
def test_unknown_rows_are_asked_for(rows):
    draft = converted("rl.yaml", "train_dataset.path=someone/else", rows=rows)
    asked = [what for what in draft.decisions if what.startswith("algorithm.maxSteps")]
    assert bool(asked) == (rows is None)
    assert spec_of(draft)["algorithm"]["maxSteps"] == (100 if rows is None else 30)
