"""What some forty public repositories did that no test had: shapes that were read wrongly or not at all."""

from __future__ import annotations

import pytest
from areal.convert.read import resolved
from areal.convert.shell import read_commands
from areal.errors import ConfigError
from foreign_scripts import TRAINED, TRAINING, VERL, read


def test_a_training_under_a_condition_that_does_not_hold_is_told(tmp_path):
    """Co-GRPO's script starts it where `[ $NODE_RANK == 0 ]`: nothing there, before it said that nothing is known."""
    text = f"if [ $NODE_RANK == 0 ]\nthen\n  {TRAINING}\nfi\n"
    with pytest.raises(ConfigError, match="under a condition that doesn't hold") as refused:
        read(tmp_path, text)
    assert "NODE_RANK=0" in str(refused.value)
    assert read(tmp_path, text, "run.sh", "NODE_RANK=0").spec["algorithm"]["maxSteps"] == 3


@pytest.mark.parametrize(
    "before",
    [
        'echo "reward=/w/reward_judge.py learning_rate=1"',
        "pkill -f verl.trainer.main_ppo",
        "python3 scripts/reward_judge.py --manifest a.jsonl --input b.jsonl",
        "python3 tools/sft_export.py --out x",
    ],
)
def test_words_that_only_look_like_a_training_start_none(before, tmp_path):
    """A script echoed its reward's file, and was read as the training of a reward model."""
    draft = read(tmp_path, f"{before}\n{TRAINING}\n")
    assert (draft.foreign.framework, draft.foreign.further) == ("verl", 0)
    assert draft.spec["algorithm"]["batchSize"] == 8
    with pytest.raises(ConfigError, match="no configuration or launch script"):
        read(tmp_path, f"{before}\n")


@pytest.mark.parametrize(
    "text",
    [
        "train() {\n  local steps=$2\n  shift\n  { echo on; }\n  {}\n}\ntrain 5 4\n",
        "function train {\n  {}\n}\nsteps=4\ntrain\n",
        'steps=4\nCMD="{}"\neval "$CMD"\n',
        "steps=4\nsrun --nodes=2 bash -c '{}'\n",
        'steps=4\ndocker run image bash -lc "cd /w && {}"\n',
    ],
)
def test_commands_in_functions_and_in_texts_for_a_shell_are_read(text, tmp_path):
    command = TRAINING.replace("total_training_steps=3", "total_training_steps=$steps")
    assert read(tmp_path, text.replace("{}", command)).spec["algorithm"]["maxSteps"] == 4


def test_a_function_is_called_with_its_words_and_the_script_keeps_its_own(tmp_path):
    text = 'go() {\n  python3 -m verl.trainer.main_ppo "$@" trainer.nnodes=$#\n}\nset x\ngo a=1 b=2\nrun $1\n'
    commands = read_commands(text, {"1": "own"})[True]
    assert commands[1:] == [
        ["python3", "-m", "verl.trainer.main_ppo", "a=1", "b=2", "trainer.nnodes=2"],
        ["run", "own"],
    ]
    assert read_commands('A="run $X"\nX=1\neval $A')[True] == [["run", "\x00$X\x00"]]
    endless = read_commands("again() {\n  again\n}\nagain\n")[True]
    assert endless == [["again"]]


def test_another_script_that_a_script_starts_is_read_with_its_overrides(tmp_path):
    """A smoke run is often the run itself with smaller numbers: `exec "$(dirname "$0")/run.sh" key=value "$@"`."""
    (tmp_path / "run.sh").write_text(f'{TRAINING} "$@"\n')
    draft = read(tmp_path, 'exec "$(dirname "$0")/run.sh" trainer.total_training_steps=1 "$@"\n', "smoke.sh")
    assert (draft.spec["algorithm"]["maxSteps"], draft.spec["algorithm"]["batchSize"]) == (1, 8)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "in.sh").write_text('run "$(dirname "${BASH_SOURCE[0]}")" $1\n')
    assert read_commands("bash $HERE/run.sh a")[True] == [["bash", "\x00$HERE\x00/run.sh", "a"]]
    own = {"0": f"{tmp_path}/x.sh", "BASH_SOURCE": f"{tmp_path}/x.sh"}
    commands = read_commands('source sub/in.sh a\nrun "$(dirname "${BASH_SOURCE[0]}")"\n', own)[True]
    assert commands == [["run", f"{tmp_path}/sub", "a"], ["run", str(tmp_path)]]
    (tmp_path / "a.sh").write_text("bash b.sh\n" * 9)
    (tmp_path / "b.sh").write_text("bash a.sh\n" * 9)
    with pytest.raises(ConfigError, match="no configuration or launch script"):  # and soon
        read(tmp_path, "bash a.sh\nbash -c '" + "x" * 300 + ".sh'\n", "circle.sh")
    alone = VERL.replace("actor_rollout_ref.", "actor_rollout_ref.actor.")
    with pytest.raises(ConfigError, match="no configuration or launch script"):
        read(tmp_path, f"/elsewhere/run_grpo.sh {alone}\n", "other.sh")


def test_a_path_that_realpath_makes_is_the_path(tmp_path):
    text = f'F=d/a.parquet\n{TRAINING} data.train_files="$(realpath "$F")" data.val_files=$(readlink -f b.parquet)\n'
    assert read(tmp_path, text).spec["dataset"]["train"]["huggingFace"]["path"] == "d/a.parquet"
    here = '"$(cd -- "$(dirname "${BASH_SOURCE[0]}")/.." >/dev/null 2>&1 && pwd)"'
    (words,) = read_commands(f"run {here}", {"BASH_SOURCE": "/w/a/run.sh"})[True]
    assert words == ["run", "/w"]


def test_a_file_that_a_command_names_by_a_variable_is_asked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"names c/grpo_\$2\.yaml, which is not here") as refused:
        read(tmp_path, "python train.py --config c/grpo_$2.yaml\n")
    assert "\x00" not in str(refused.value)
    assert str(refused.value).endswith("run.sh 2=…")


def test_a_placeholder_in_braces_is_no_mapping(tmp_path):
    text = 'D="{your_dataset_path_here}"\npython -m openrlhf.cli.train_sft --pretrain a/b --dataset $D\n'
    assert read(tmp_path, text).spec["dataset"]["train"]["huggingFace"]["path"] == "{your_dataset_path_here}"


HYDRA = "hydra: {searchpath: ['pkg://verl.trainer.config']}\ndefaults: [ppo_trainer, base, _self_]\n"
TREE = "actor_rollout_ref: {model: {path: a/b}, rollout: {n: 4}}\ntrainer: {total_training_steps: 3}\n"


def test_verls_own_defaults_are_what_a_file_leaves_out_and_files_beside_are_composed(tmp_path):
    """Nearly every project on verl lays its YAML over `ppo_trainer`, and some over one of their own."""
    (tmp_path / "base.yaml").write_text("data: {train_files: a.parquet, train_batch_size: 8}\nseed: 1\n")
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "long.yaml").write_text("response_length: 9\nprompt_length: 7\n")
    draft = read(tmp_path, HYDRA + TREE, "mine.yaml")
    assert (draft.spec["algorithm"]["batchSize"], draft.spec["algorithm"]["groupSize"]) == (8, 4)
    placed = HYDRA.replace("base, ", "base, {rollout@actor_rollout_ref.rollout: long}, {actor@x.y: theirs}, ")
    values = read(tmp_path, placed + TREE, "mine.yaml").foreign.values
    assert values["actor_rollout_ref.rollout.response_length"] == 9
    assert values["actor_rollout_ref.rollout.n"] == 4
    (tmp_path / "base.yaml").write_text("defaults: [base, mine]\ndata: {train_files: a.parquet}\n")
    for unknown in (HYDRA.replace("base", "elsewhere"), HYDRA):  # a name that isn't here, and a circle
        with pytest.raises(ConfigError, match="composes files"):
            read(tmp_path, unknown + TREE, "mine.yaml")
    with pytest.raises(ConfigError, match="composes files"):
        read(tmp_path, "defaults: [{}]\n" + TREE, "mine.yaml")
    rows = "data: {train_files: a.parquet, train_batch_size: 8}\n"
    for none in ("defaults:\n", "defaults: [{override hydra/job_logging: disabled}, _self_]\n"):
        assert read(tmp_path, none + rows + TREE, "own.yaml").spec["algorithm"]["groupSize"] == 4


def test_a_product_in_a_file_is_calculated(tmp_path):
    """rLLM has a resolver `mul`."""
    tree = {"a": 6, "b": "${mul:${a},7}"}
    assert resolved(tree, tmp_path / "a.yaml")["b"] == 42


def test_the_environments_value_is_its_default_or_asked_for(tmp_path):
    tree = {"a": "${oc.env:PORT,8000}", "b": "${oc.env:KEY}", "c": "${oc.env:NAME, null}"}
    assert resolved(tree, tmp_path / "a.yaml") == {"a": 8000, "b": "\x00$KEY\x00", "c": None}


def test_empty_lists_of_rows_are_no_rows(tmp_path):
    draft = read(tmp_path, f"{TREE}data: {{train_files: [], val_files: [], train_batch_size: 8}}\n", "a.yaml")
    assert any(what.startswith("dataset.train: rows are named nowhere") for what in draft.decisions)


def test_a_folder_of_ones_own_is_no_name_on_the_hub(tmp_path):
    text = TRAINING.replace("model.path=a/b", "model.path=outputs/sft-merged")
    assert read(tmp_path, text).spec["model"] == {"path": "outputs/sft-merged"}


BLOCKS = """\
model_name_or_path: x/y
train_dataset: data/rows.jsonl
grpo: {learning_rate: 1.0e-6, num_generations: 6, per_device_train_batch_size: 6, gradient_accumulation_steps: 16}
lora: {r: 16, lora_alpha: 32, target_modules: [q_proj]}
"""


def test_blocks_of_trls_arguments_are_read_and_asked_about(tmp_path):
    """Files of people's own scripts: these were taken for NeMo-RL's or AReaL's, or read without their numbers."""
    draft = read(tmp_path, BLOCKS, "a.yaml")
    assert (draft.foreign.framework, draft.spec["algorithm"]["groupSize"]) == ("trl", 6)
    assert draft.spec["algorithm"]["batchSize"] == 16
    assert draft.spec["optimizer"]["learningRate"] == 1e-6
    assert draft.spec["trainer"]["lora"] == {"rank": 16, "alpha": 32.0, "targets": ["q_proj"]}
    assert "spec: keys of grpo are read as TRL's; a script decides what it does with the file" in draft.decisions


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("grpo: {num_prompts_per_step: 32}\npolicy: {model_name: x/y}\n", "NeMo-RL"),
        ("defaults: ../grpo_math_1B.yaml\ngrpo: {num_prompts_per_step: 32}\n", "NeMo-RL"),
        ("tinker_base_url: null\ndata: {train_files: a.parquet}\n", "rLLM on Tinker"),
        ("command: python train.py --critic_type drgrpo --prompt_data x\n", "OAT"),
        ("script: open_instruct/grpo_fast.py\n", "open-instruct"),
        ("datasets: [{path: x/y}]\nbase_model: a/b\n", "axolotl"),
    ],
)
def test_files_of_others_are_known_by_what_only_they_have(text, whose, tmp_path):
    with pytest.raises(ConfigError, match=f"a file of {whose}"):
        read(tmp_path, text, "a.yaml")


def test_areals_file_with_a_cluster_and_defaults_is_areals(tmp_path):
    text = "defaults: [{base: x}]\ncluster: {n_nodes: 1}\ngconfig: {n_samples: 4}\n"
    with pytest.raises(ConfigError, match="composes files"):
        read(tmp_path, text, "a.yaml")


PYTHON = """\
import argparse, os
from dataclasses import dataclass, field
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

@dataclass
class Config:
    model: str = "x/y"
    rate: float = 3e-6
    group: int = field(default=4)
    quiet: bool = True

def adapter(r, alpha, targets="q_proj, v_proj"):
    return LoraConfig(r=r, lora_alpha=alpha, target_modules=[t.strip() for t in targets.split(",") if t.strip()])

def main(steps: int = typer.Option(7, help="steps"), seed=None):
    cfg = parse(Config)
    args = GRPOConfig(
        learning_rate=cfg.rate, num_generations=cfg.group, max_steps=int(steps),
        per_device_train_batch_size=8 if cfg.quiet is not None else 9, seed=int(os.environ.get("SEED", "5")),
        **more,
    )
    rows = load_dataset("json", data_files=f"{'data'}/rows.jsonl")
    GRPOTrainer(model=cfg.model, args=args, peft_config=adapter(8, alpha=16), reward_funcs=score)
"""


def test_a_scripts_dataclass_its_functions_and_its_options_give_their_values(tmp_path):
    """As people write them around TRL: each of these was asked for, or read as TRL's own default."""
    draft = read(tmp_path, PYTHON, "train.py")
    algorithm, optimizer = draft.spec["algorithm"], draft.spec["optimizer"]
    assert (algorithm["groupSize"], algorithm["batchSize"], algorithm["maxSteps"]) == (4, 2, 7)
    assert (optimizer["learningRate"], draft.spec["seed"], draft.spec["model"]) == (3e-6, 5, {"uri": "hf://x/y"})
    assert draft.spec["trainer"]["lora"] == {"rank": 8, "alpha": 16.0, "targets": ["q_proj", "v_proj"]}
    assert draft.spec["dataset"]["train"] == {"jsonl": "data/rows.jsonl"}
    assert any("unknown to this command" in what and "**more" in what for what in draft.decisions)


@pytest.mark.parametrize(
    "call",
    ["adapter(8, 16)\nadapter(4, 8)", "adapter(*sizes)", "adapter(int(os.environ.get('R')), 16)", "x.adapter(rank)"],
    ids=["called-twice", "spread", "environment", "a-method"],
)
def test_a_parameter_that_could_be_anything_is_asked_for(call, tmp_path):
    text = PYTHON.replace("peft_config=adapter(8, alpha=16), ", "") + f"{call}\n"
    with pytest.raises(ConfigError, match=r"doesn't say what these are: .*\(for lora_r\)") as refused:
        read(tmp_path, text, "train.py")
    assert "train.py lora_r=…" in str(refused.value)


def test_a_text_that_is_formatted_is_asked_for(tmp_path):
    text = PYTHON.replace("f\"{'data'}/rows.jsonl\"", 'f"rows-{7:05d}.jsonl"')
    with pytest.raises(ConfigError, match=r"05d.*\(for dataset_name\)"):
        read(tmp_path, text, "train.py")


def test_an_adapter_of_rank_nothing_is_none(tmp_path):
    draft = read(tmp_path, PYTHON.replace("adapter(8, ", "adapter(0, "), "train.py")
    assert "lora" not in draft.spec["trainer"]


STREAMED = (
    "python3 -m verl.experimental.fully_async_policy.fully_async_main --config-name=fully_async_ppo_trainer.yaml "
    + TRAINED.replace("batch_size=8", "batch_size=0", 1)
    + " data.gen_batch_size=1 async_training.require_batches=2 async_training.trigger_parameter_sync_step=3"
    + " async_training.staleness_threshold={} async_training.partial_rollout=True"
    + " rollout.total_rollout_steps=4800 rollout.total_epochs=10 rollout.nnodes=2 rollout.n_gpus_per_node=8"
    + " trainer.nnodes=1 trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.tensor_model_parallel_size=4\n"
)


@pytest.mark.parametrize(("share", "lag"), [("0", 0), ("0.1", 1), ("1", 1), ("1.5", 2)])
def test_verls_fully_asynchronous_training_keeps_its_versions_its_age_and_its_machines(share, lag, tmp_path):
    """A version there comes after several small batches: they are the updates of one step here."""
    draft = read(tmp_path, STREAMED.format(share))
    algorithm = draft.spec["algorithm"]
    assert (algorithm["batchSize"], algorithm["miniBatches"], algorithm["maxSteps"]) == (48, 6, 100)
    assert (algorithm["maxStaleness"], draft.spec["rollout"]["maxConcurrentRollouts"]) == (lag, 48 * (1 + lag))
    assert algorithm["advanced"]["proximal"] == "behaviour"
    assert (draft.spec["generation"]["replicas"], draft.spec["trainer"]["gpus"]) == (4, 8)
    assert "placement" not in draft.spec
    assert not any("program of its own" in what or "unknown" in what for what in draft.decisions)


def test_a_streamed_training_that_computes_its_own_proximal_policy_is_decoupled(tmp_path):
    text = STREAMED.format(0.5).rstrip() + " async_training.compute_prox_log_prob=True\n"
    draft = read(tmp_path, text.replace("rollout.total_rollout_steps=4800 ", ""))
    assert "proximal" not in draft.spec["algorithm"]["advanced"]
    assert draft.spec["algorithm"]["maxSteps"] == 3  # as trainer.total_training_steps says


def test_names_of_verls_newest_configuration_are_those_of_before(tmp_path):
    """Of August 2026: the reward's keys have a block of their own; 23 of its examples lost their overlong penalty."""
    keys = (
        "reward.reward_manager.name=dapo reward.reward_kwargs.overlong_buffer_cfg.enable=True model_engine=veomni "
        "reward.reward_kwargs.overlong_buffer_cfg.len=96 reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5 "
        "reward.reward_kwargs.max_resp_len=512 reward.custom_reward_function.path=mine.py reward.num_workers=4 "
        "trainer.test_freq=after_each_epoch data.val_files=b.parquet"
    )
    draft = read(tmp_path, f"{TRAINING} {keys}\n")
    assert draft.spec["algorithm"]["overlong"] == {"window": 96, "factor": 0.5, "maxTokens": 512}
    assert any("mine.py is loaded from where it is" in what for what in draft.decisions)
    assert any("trainer.test_freq is after_each_epoch there" in what for what in draft.decisions)
    assert not any("unknown" in entry.why for entry in draft.dropped)


def test_a_teacher_of_verls_is_a_decision(tmp_path):
    keys = "distillation.enabled={} distillation.teacher_models.t.model_path=x/y"
    draft = read(tmp_path, f"{TRAINING} {keys.format(True)}\n")
    assert any(what.startswith("algorithm.teacher: a teacher judges") for what in draft.decisions)
    off = read(tmp_path, f"{TRAINING} {keys.format(False)}\n")
    assert not any("teacher" in what for what in off.decisions)


CASE = """\
gpus=1
case "$DEVICE" in
    cuda|gpu)
        gpus=8 ;;
    npu*) gpus=16
        nodes=2
        ;;
    (*) echo "no such device"; exit 1 ;;
esac
run $gpus $nodes
"""


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", ["8", "\x00$nodes\x00"]),
        ("cuda", ["8", "\x00$nodes\x00"]),
        ("npu2", ["16", "2"]),
        ("x", ["1", "\x00$nodes\x00"]),
    ],
)
@pytest.mark.parametrize("form", ["{}", "f() {{\n{}}}\nf\n"], ids=["plain", "in-a-function"])
def test_the_branch_of_a_case_is_taken_where_what_it_looks_at_is_known(form, device, words):
    """As a dozen of verl's examples choose their numbers by DEVICE, and others' by the model."""
    assert read_commands(form.format(CASE), {"DEVICE": device})[True][-1] == ["run", *words]
    line = read_commands("case $D in gpu) n=8;; *) n=9;; esac\nrun $n", {"D": device})[True][-1]
    assert line == ["run", "8" if device == "gpu" else "9"]
    unknown = read_commands(form.format(CASE), {})
    assert unknown[True][-1] == ["run", "\x00$gpus\x00", "\x00$nodes\x00"]
    assert ["exit", "1"] in unknown[None]


def test_a_config_that_a_program_is_given_is_areals_only_where_it_looks_so(tmp_path):
    """NeMo-RL's and many others' programs have a `--config`, too."""
    (tmp_path / "a.yaml").write_text("grpo: {num_prompts_per_step: 32}\npolicy: {model_name: x/y}\n")
    with pytest.raises(ConfigError, match=r"a\.yaml is no configuration or launch script"):
        read(tmp_path, "python examples/single_update.py --config a.yaml\n")


def test_old_log_probabilities_from_generation_are_the_proximal_policy(tmp_path):
    draft = read(tmp_path, f"{TRAINING} actor_rollout_ref.actor.use_rollout_log_probs=True\n")
    assert draft.spec["algorithm"]["advanced"]["proximal"] == "behaviour"
    off = read(tmp_path, f"{TRAINING} actor_rollout_ref.actor.use_rollout_log_probs=False\n")
    assert "proximal" not in off.spec["algorithm"]["advanced"]


def test_flat_flags_of_openrlhf_about_machines_need_no_decision(tmp_path):
    flags = "--deepspeed_enable_sleep --enforce_eager --colocate_actor_ref --use_dynamic_batch"
    flags += " --train_max_tokens_per_gpu 16"
    text = f"python -m openrlhf.cli.train_ppo_ray --pretrain a/b --prompt_data x/y {flags}\n"
    assert not any("unknown" in what for what in read(tmp_path, text).decisions)
