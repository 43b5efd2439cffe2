"""Files of the shapes that public recipes have: forks of verl, older names, other frameworks, odd launch scripts."""

from __future__ import annotations

import pytest
from areal.convert.read import resolved
from areal.convert.shell import read_commands
from areal.errors import ConfigError
from foreign_scripts import TRAINED, TRAINING, read


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("-m recipe.dapo.main_dapo", "recipe.dapo.main_dapo is a program of its own"),
        ("-m some_tool.trainer.main_ppo", "some_tool.trainer.main_ppo is a program of its own"),
        ("train/agents.py", "train/agents.py is a program of its own"),
        ("-m verl.trainer.main_ppo", ""),
    ],
)
def test_a_program_built_on_verl_is_read_and_its_own_ways_are_asked_about(program, said, tmp_path):
    """As ByteDance's recipes, verl-tool and rLLM start theirs."""
    draft = read(tmp_path, f'ray job submit --working-dir "$PWD" -- python3 {program} {TRAINED}\n')
    assert (draft.foreign.framework, draft.spec["algorithm"]["groupSize"]) == ("verl", 2)
    assert any("program of its own" in what for what in draft.decisions) == bool(said)
    assert any(said in what for what in draft.decisions)


def test_a_forks_own_keys_are_decisions_and_its_group_is_not_lost(tmp_path):
    """Search-R1 repeats a row `n_agent` times, `rollout.n` is 1 there; turns have a block of their own."""
    text = "python3 -m verl.trainer.main_ppo " + TRAINED.replace("rollout.n=2", "rollout.n_agent=5")
    draft = read(tmp_path, f"{text} max_turns=2 retriever.topk=3 data.custom_cls.path=mine.py data.cache=1\n")
    assert draft.spec["algorithm"]["groupSize"] == 5
    (unknown,) = [what for what in draft.decisions if "unknown to this command" in what]
    assert all(key in unknown for key in ("max_turns", "retriever.topk", "data.custom_cls.path"))
    assert "data.cache" not in unknown


def test_groups_that_a_fork_rejects_are_filtered(tmp_path):
    """Skywork-OR1 and rLLM say `trainer.rejection_sample`."""
    draft = read(tmp_path, f"python3 -m verl.trainer.main_ppo {TRAINED} trainer.rejection_sample=True\n")
    assert draft.spec["algorithm"]["zeroVariance"] == "filter"


def test_a_mixture_of_datasets_is_told(tmp_path):
    """The alignment handbook and Open-R1 name their rows in `dataset_mixture`."""
    mixture = "dataset_mixture:\n  datasets:\n    - {id: a/one, config: c, weight: 0.5}\n    - {id: a/two}\n"
    draft = read(tmp_path, FIXED.replace("dataset_name: x/y\n", mixture), "sft.yaml")
    assert "dataset.train.sources: a/one, a/two there" in draft.decisions


def test_a_reward_function_beside_a_reward_model_is_a_decision(tmp_path):
    keys = "reward_model.enable=True reward_model.model.path=x/y custom_reward_function.path=mine.py"
    draft = read(tmp_path, f"python3 -m verl.trainer.main_ppo {TRAINED} {keys}\n")
    assert any("mine.py scores there, too" in what for what in draft.decisions)


def test_verls_sft_of_today_names_its_model_by_path(tmp_path):
    keys = "data.train_files=a.parquet data.train_batch_size=8 model.path=a/b optim=fsdp engine=fsdp optim.lr=2e-5"
    draft = read(tmp_path, f"torchrun -m verl.trainer.sft_trainer {keys} trainer.test_freq=False data.pad_mode=x\n")
    assert draft.spec["model"] == {"uri": "hf://a/b"}
    assert draft.spec["optimizer"]["learningRate"] == 2e-5
    assert not any("unknown" in entry.why for entry in draft.dropped)


def test_keys_behind_a_configurations_name_are_keys(tmp_path):
    draft = read(tmp_path, f"python3 -m verl.trainer.main_ppo --config-name other.yaml {TRAINED}\n")
    assert any("starts from other.yaml, which" in what for what in draft.decisions)


def test_a_batch_of_nothing_is_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match="its batches are of 0"):
        read(tmp_path, "python3 -m verl.trainer.main_ppo " + TRAINED.replace("batch_size=8", "batch_size=0", 1))


def test_a_training_under_an_unknown_condition_is_read_where_it_is_the_only_one(tmp_path):
    """Scripts for several nodes start it on the first: `if [ "$NODE_RANK" -eq 0 ]`."""
    both = f'if [ "$RANK" -eq 0 ]; then\n  ray start --head\n  {TRAINING}\nelse\n  {{}}\nfi\n'
    assert read(tmp_path, both.format("sleep 30")).spec["algorithm"]["batchSize"] == 8
    other = TRAINING.replace("total_training_steps=3", "total_training_steps=9")
    with pytest.raises(ConfigError, match="several trainings, each under a condition"):
        read(tmp_path, both.format(other))
    draft = read(tmp_path, both.format(other), "run.sh", "RANK=1")
    assert draft.spec["algorithm"]["maxSteps"] == 9


def test_sums_by_expr_are_sums():
    assert read_commands("A=4\nrun $(expr $A + 2) $(expr $A \\* 3)")[True][-1] == ["run", "6", "12"]


def test_an_interpolation_may_hold_braces():
    assert resolved({"b": "${oc.select:nothing,{}}"}, None)["b"] == {}  # type: ignore[arg-type]


FIXED = "model_name_or_path: a/b\ndataset_name: x/y\nmax_steps: 5\nper_device_train_batch_size: 4\nnum_processes: 2\n"


@pytest.mark.parametrize(
    ("name", "more", "kind"),
    [
        ("dpo/config_full.yaml", "beta: 0.1\n", "DPO"), ("sft/config.yaml", "", "SFT"),
        ("anywhere/config.yaml", "beta: 0.1\nmax_prompt_length: 512\n", "DPO"),
    ],
)  # fmt: skip
def test_a_configuration_is_of_the_training_that_its_folder_or_its_keys_say(name, more, kind, tmp_path):
    """The alignment handbook and Open-R1 keep `recipes/MODEL/dpo/config_full.yaml`."""
    draft = read(tmp_path, FIXED + more + "loss_type: sigmoid\n" * (kind == "DPO"), name)
    assert draft.spec["training"]["name"] == kind
    assert not any("training.loss" in what or "unknown" in what for what in draft.decisions)


@pytest.mark.parametrize("name", ["orpo/config_full.yaml", "kto.yaml"])
def test_a_training_without_equivalent_is_not_read_as_another(name, tmp_path):
    with pytest.raises(ConfigError, match="which has no equivalent here"):
        read(tmp_path, FIXED + "beta: 0.05\n", name)


def test_older_names_of_trl_are_not_lost(tmp_path):
    more = "max_seq_length: 4096\ntorch_dtype: bfloat16\noverwrite_output_dir: true\nchat_template: '{{ messages }}'\n"
    draft = read(tmp_path, FIXED + more, "sft.yaml")
    assert draft.spec["training"]["maxTokens"] == 4096
    assert draft.spec["model"]["chatTemplate"] == "{{ messages }}"
    assert not any("unknown" in entry.why for entry in draft.dropped)


def test_openrlhfs_unknown_flags_are_decisions(tmp_path):
    text = "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --prompt_data x/y --enable_accuracy_filter"
    draft = read(
        tmp_path, f"{text} --rollout_batch_size 8 --train_batch_size 8 --vllm_sync_backend nccl --ref_num_nodes 1\n"
    )
    (unknown,) = [what for what in draft.decisions if "unknown to this command" in what]
    assert unknown.endswith("matter: enable_accuracy_filter")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.sh", "python -m openrlhf.cli.serve_rm --port 5000 --batch_size 8\n", "no configuration or launch script"),
        ("a.sh", "deepspeed --module openrlhf.cli.train_kto --pretrain a/b\n", "train_kto has no equivalent"),
        ("a.yaml", "data: {train_files: a}\nworker:\n  actor: {x: 1}\n", "a file of EasyR1"),
        ("a.sh", "python3 -m verl.trainer.main config=a.yaml worker.actor.model.model_path=$M\n", "a file of EasyR1"),
        ("a.yaml", "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\n", "a file of LLaMA-Factory"),
        ("a.yaml", "model: a/b\nmodel_class: llm\ntrain_dataset: data/sft.yaml\n", "a file of LLaMA-Factory"),
        ("a.yaml", "model: a/b\ntuner_type: lora\nper_device_train_batch_size: 1\n", "a file of ms-swift"),
        ("a.sh", "torchrun --nproc_per_node 8 swift/cli/sft.py --model a/b --dataset x/y\n", "a file of ms-swift"),
        ("a.yaml", "base_model: a/b\ndatasets:\n  - path: x\n", "a file of axolotl"),
        ("a.yaml", "defaults: ../grpo.yaml\ngrpo: {num_prompts_per_step: 8}\npolicy:\n  model_name: a/b\n", "NeMo-RL"),
        ("a.sh", "uv run -m skyrl.train.entrypoints.main_base trainer.policy.model.path=a/b\n", "a file of SkyRL"),
        ("a.sh", "python3 train.py --hf-checkpoint $M --rollout-batch-size 8\n", "a file of slime or miles"),
        ("a.sh", "CUDA_VISIBLE_DEVICES=0 \\\nswift rlhf --rlhf_type grpo --model a/b\n", "a file of ms-swift"),
        ("a.toml", "max_steps = 5\n[orchestrator]\nbatch_size = 8\n", "a file of prime-rl"),
        ("a.yaml", "rollout_batch_size: 8\nactor_train:\n  model_args: {dtype: bf16}\n", "a file of ROLL"),
        ("a.yaml", "compute_environment: LOCAL_MACHINE\nnum_processes: 8\n", "a file of accelerate"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_by_its_name(name, text, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text, name)


def test_a_script_of_any_name_has_its_command_in_its_docstring(tmp_path):
    """TRL's examples are called mpo_vlm.py, sudoku.py or nash.py, too; several losses at once are for people."""
    text = (
        '"""\npython examples/scripts/mpo_vlm.py \\\n    --dataset_name org/pairs \\\n'
        "    --model_name_or_path org/vlm \\\n"
        "    --num_train_epochs 1 \\\n    --lora_target_modules down_proj, o_proj \\\n    --use_peft \\\n"
        '    --loss_type sigmoid bco_pair sft \\\n    --loss_weights 0.8 0.2 1.0\n"""\n'
        "from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config\n"
        "parser = TrlParser((ScriptArguments, DPOConfig, ModelConfig))\n"
        "script_args, training_args, model_args = parser.parse_args_and_config()\n"
        "trainer = DPOTrainer(args=training_args, peft_config=get_peft_config(model_args))\n"
    )
    draft = read(tmp_path, text, "mpo_vlm.py")
    assert draft.spec["model"] == {"uri": "hf://org/vlm"}
    assert draft.spec["dataset"]["train"]["huggingFace"]["path"] == "org/pairs"
    assert draft.spec["training"]["epochs"] == 1
    assert draft.spec["trainer"]["lora"]["targets"] == ["down_proj", "o_proj"]
    assert any(said.startswith("training.loss: ['sigmoid', 'bco_pair', 'sft']") for said in draft.decisions)


def test_keys_of_verl_in_a_programs_dict_are_read(tmp_path):
    """Agent Lightning's examples hand verl's keys over so, names of their module among the values."""
    text = """
MODEL = "x/y"
SMALL = {"actor_rollout_ref": {"model": {"path": MODEL}}}

def config(rate, path=MODEL):
    return {
        "data": {"train_batch_size": 8, "max_prompt_length": 64, "max_response_length": 32},
        "actor_rollout_ref": {
            "model": {"path": path},
            "rollout": {"n": 4, "name": "sglang"},
            "actor": {"ppo_mini_batch_size": 4, "optim": {"lr": 1e-6}},
        },
        "trainer": {"total_training_steps": 7, "n_gpus_per_node": 2, "experiment_name": "mine"},
        "agentlightning": {"local": {"agent_class": "a.B"}},
    }
"""
    draft = read(tmp_path, text, "train_agent.py")
    assert draft.foreign.framework == "verl"
    assert draft.spec["model"] == {"uri": "hf://x/y"}
    assert draft.spec["algorithm"].items() >= {"batchSize": 8, "groupSize": 4, "miniBatches": 2, "maxSteps": 7}.items()
    assert any("agentlightning.local.agent_class" in what for what in draft.decisions)
    with pytest.raises(ConfigError, match="which_model"):
        read(tmp_path, text.replace('"path": path', '"path": which_model()'), "train_agent.py")
