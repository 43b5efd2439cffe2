"""Keys that a stranger's file takes for granted: where weights come from, a program's defaults, what its code does."""

from __future__ import annotations

import pytest
from areal.convert.convert import lists
from areal.convert.shell import read_commands
from areal.errors import ConfigError
from foreign_scripts import TRAINED, read

RL = f"python3 -m verl.trainer.main_ppo {TRAINED}"
ROWS = "data.train_files=a.parquet data.train_batch_size=8"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("trainer.resume_mode=resume_path trainer.resume_from_path=runs/step_9", "trainer.resume_from_path goes on"),
        ("trainer.resume_mode=auto trainer.resume_from_path=null", ""),
        ("actor_rollout_ref.model.lora_adapter_path=a/adapter", "actor_rollout_ref.model.lora_adapter_path's there"),
        ("actor_rollout_ref.actor.megatron.dist_checkpointing_path=$CKPT", "dist_checkpointing_path's there"),
        ("actor_rollout_ref.actor.megatron.dist_checkpointing_path=null", ""),
        ("actor_rollout_ref.ref.model.path=other/model", "actor_rollout_ref.ref.model.path is other/model there"),
    ],
)
def test_weights_that_come_from_elsewhere_are_a_decision(keys, said, tmp_path):
    """A run that went on from step 120 was converted to one that starts from the base model."""
    decisions = read(tmp_path, f"{RL} {keys}\n").decisions
    assert any(said in what for what in decisions if what.startswith(("model.path", "algorithm.kl"))) == bool(said)


def test_an_evaluation_and_a_part_of_the_rows_are_decisions(tmp_path):
    decided = " ".join(read(tmp_path, f"{RL} trainer.val_only=True data.train_max_samples=100\n").decisions)
    assert "nothing is trained there (trainer.val_only)" in decided
    assert "dataset.train: 100 rows of it" in decided
    whole = read(tmp_path, f"{RL} trainer.val_only=False data.train_max_samples=-1\n")
    assert not any("val_only" in what or "dataset.train" in what for what in whole.decisions)


@pytest.mark.parametrize("key", ["trainer.reference_every=9", "async_training.fastest=4", "data.answer_weight=2"])
def test_a_forks_own_key_is_a_decision_in_every_block(key, tmp_path):
    """They were dropped by a pattern for the whole block, with a reason that wasn't theirs."""
    draft = read(tmp_path, f"{RL} {key}\n")
    name = key.partition("=")[0]
    assert any(what.startswith("spec: unknown") and name in what for what in draft.decisions)
    known = read(tmp_path, f"{RL} trainer.device=cuda data.use_shm=True trainer.balance_batch=True\n")
    assert not any("unknown" in entry.why for entry in known.dropped)


def test_arguments_of_the_chat_template_are_carried(tmp_path):
    """Qwen3 thinks or not by one of them."""
    draft = read(tmp_path, f"{RL} +data.apply_chat_template_kwargs.enable_thinking=False\n")
    assert draft.spec["model"]["chatTemplateKwargs"] == {"enable_thinking": False}
    keys = f"{ROWS} model.path=a/b data.enable_thinking_default=False"
    assert read(tmp_path, f"torchrun -m verl.trainer.sft_trainer {keys}\n").spec["model"] == draft.spec["model"]
    template = read(tmp_path, f"{RL} actor_rollout_ref.model.custom_chat_template='{{{{ messages }}}}'\n")
    assert template.spec["model"]["chatTemplate"] == "{{ messages }}"


def test_each_of_verls_sft_programs_has_its_own_defaults(tmp_path):
    """`fsdp_sft_trainer` had a cosine from 1e-5; `sft_trainer`, which came after it, has a constant 1e-3."""
    older = read(tmp_path, f"torchrun -m verl.trainer.fsdp_sft_trainer {ROWS} model.partial_pretrain=a/b\n")
    newer = read(tmp_path, f"torchrun -m verl.trainer.sft_trainer {ROWS} model.path=a/b model=hf_model\n")
    rates = [(d.spec["optimizer"]["learningRate"], d.spec["optimizer"]["lrSchedule"]) for d in (older, newer)]
    assert rates == [(1e-5, "cosine"), (1e-3, "constant")]
    assert newer.spec["optimizer"]["betas"] == [0.9, 0.999]
    assert newer.decisions == []


def test_the_launcher_says_how_many_gpus_an_sft_of_verl_has(tmp_path):
    text = f"torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer {ROWS} model.path=a/b\n"
    draft = read(tmp_path, text)
    assert draft.spec["trainer"]["gpus"] == 2
    listed = [key for _, rows in lists(draft) for keys, _ in rows for key in keys if "not written" not in key]
    assert sorted(listed) == sorted(draft.foreign.values)
    unknown = read(tmp_path, text.replace("=2 ", "=$GPUS ", 1))
    assert unknown.spec["trainer"]["gpus"] == 8


TRL = "from trl import GRPOConfig, GRPOTrainer\n"
END = "trainer = GRPOTrainer(model='a/b', args=args, reward_funcs=[score], train_dataset=rows)\n"


def trained(tmp_path, text, *given):
    values = read(tmp_path, f"{TRL}{text}{END}", "train.py", "num_processes=1", *given).foreign.values
    return {key: value for key, value in values.items() if key not in ("num_processes", "model_name_or_path")}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('k = {"beta": 0.0}\nk["beta"] = 0.04\nargs = GRPOConfig(**k)\n', {"beta": 0.04}),
        (
            'k = dict(beta=0.0)\nk.update({"top_p": 0.9}, beta=0.04)\nargs = GRPOConfig(**k)\n',
            {"beta": 0.04, "top_p": 0.9},
        ),
        ('base = {"beta": 0.04}\nk = {**base, "top_p": 0.9}\nargs = GRPOConfig(**k)\n', {"beta": 0.04, "top_p": 0.9}),
        ('base = {"beta": 0.04}\nargs = GRPOConfig(**dict(base, **base))\n', None),
        ('base = {"beta": 0.04}\nargs = GRPOConfig(**(base | {"top_p": x()}))\n', None),
        ('k = {"beta": 0.04, **more()}\nargs = GRPOConfig(**k)\n', {"beta": 0.04, "**more()": "taken from elsewhere"}),
        (
            'k = {"beta": 0.0}\nif long():\n    k["top_p"] = 0.9\nargs = GRPOConfig(**k)\n',
            {"beta": 0.0, 'k["top_p"]': "taken from elsewhere"},
        ),
    ],
)
def test_a_dict_of_arguments_has_what_later_lines_and_other_dicts_put_into_it(text, values, tmp_path):
    """Lines behind the first and `**base` were lost without a word."""
    found = trained(tmp_path, text)
    if values is None:  # not read: a key to look at
        assert any(key.startswith("**") for key in found)
    else:
        assert found == values


def test_arguments_that_a_function_makes_are_read(tmp_path):
    """Two functions may call their dicts alike."""
    text = (
        "def other(args):\n    kwargs = {'top_p': 0.1}\n    kwargs['top_k'] = 3\n    return kwargs\n"
        "def made(args):\n    kwargs = {'beta': 0.04}\n"
        "    kwargs['bf16'] = torch.cuda.is_available() and bool(getattr(args, 'half', 1))\n"
        "    kwargs['use_vllm'] = device.type == 'cuda'\n    return kwargs\n"
        "parser.add_argument('--half', action='store_true', default=True)\n"
        "args = GRPOConfig(**made(args))\n"
    )
    assert trained(tmp_path, text) == {"beta": 0.04, "bf16": True, "use_vllm": True}
    two = text.replace("return kwargs\nparser", "if args.half:\n        return {}\n    return kwargs\nparser")
    assert list(trained(tmp_path, two)) == ["**made(args)"]


OWN = (
    "parser.add_argument('--lr', type=float, required=True)\nparser.add_argument('--beta', type=float, default=0.0)\n"
    "args = GRPOConfig(learning_rate=args.lr, beta=args.beta, top_p=args.top_p)\n"
)


def test_a_script_that_starts_somebodys_own_program_is_read_with_the_options_it_gives(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRL + OWN + END)
    for start in ("-m code.train", "code/train.py"):
        draft = read(tmp_path, f"LR=2e-5\naccelerate launch --num_processes 4 {start} --lr $LR --top-p 0.9\n")
        assert draft.foreign.file.name == "run.sh"
        assert (draft.spec["optimizer"]["learningRate"], draft.spec["rollout"]["sampling"]["topP"]) == (2e-5, 0.9)
        assert draft.spec["trainer"]["gpus"] == 4
        assert not any("unknown" in entry.why for entry in draft.dropped)
    parsed = "parser = TrlParser((GRPOConfig,))\n(args,) = parser.parse_args_and_config()\n"
    (tmp_path / "code" / "train.py").write_text("from trl import TrlParser\n" + TRL + parsed + END)
    draft = read(tmp_path, "python code/train.py --learning_rate 3e-5 --num_generations 4\n")
    assert (draft.spec["optimizer"]["learningRate"], draft.spec["algorithm"]["groupSize"]) == (3e-5, 4)


def test_shift_takes_as_many_words_as_it_says(tmp_path):
    """The model's path was the second of three words that `shift 3` takes away."""
    text = 'go() {\n  shift 2\n  run "${1:-none}" $#\n}\ngo a b c\ngo a b\n'
    assert read_commands(text)[True] == [["shift", "2"], ["run", "c", "1"], ["shift", "2"], ["run", "none", "0"]]


FLAT = "num_generations: 2\nmax_completion_length: 8\nper_device_train_batch_size: 4\nmax_steps: 3\nnum_processes: 1\n"


@pytest.mark.parametrize(("switch", "asked"), [("", True), ("use_peft: true\n", False), ("use_peft: false\n", False)])
def test_adapters_that_nothing_switches_on_are_a_decision(switch, asked, tmp_path):
    """A script of somebody's own makes adapters of `lora_r`; TRL's own asks for `use_peft`."""
    draft = read(tmp_path, f"{FLAT}lora_r: 8\n{switch}", "grpo.yaml")
    assert any(what.startswith("trainer.lora") for what in draft.decisions) == asked
    assert ("lora" in draft.spec["trainer"]) == ("true" in switch)


def test_keys_of_rows_that_trl_has_not_are_decisions_and_template_arguments_are_carried(tmp_path):
    draft = read(
        tmp_path, f"{FLAT}dataset_path: a.jsonl\nchat_template_kwargs: {{enable_thinking: false}}\n", "grpo.yaml"
    )
    assert any(what.startswith("spec: unknown") and "dataset_path" in what for what in draft.decisions)
    assert draft.spec["model"]["chatTemplateKwargs"] == {"enable_thinking": False}
    found = read(
        tmp_path, f"{TRL}args = GRPOConfig(chat_template_kwargs={{'enable_thinking': True}})\n{END}", "train.py"
    )
    assert found.spec["model"]["chatTemplateKwargs"] == {"enable_thinking": True}


def test_what_the_environment_decides_is_named_all_at_once_by_the_key_that_needs_it_first(tmp_path):
    text = RL.replace("a.parquet", "$(make_rows x)").replace("path=a/b", "path=$MODEL")
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"{text} data.val_files=$(make_rows x) trainer.test_freq=1\n")
    assert str(refused.value.fix).endswith("data.train_files=… MODEL=…")


def test_a_file_of_plots_with_a_base_model_is_nobodys(tmp_path):
    with pytest.raises(ConfigError, match="no configuration or launch script"):
        read(tmp_path, "runs: [{id: a}]\nbase_model: {label: start}\n", "plots.yaml")


def test_a_part_of_verls_settings_in_a_program_is_no_training(tmp_path):
    """As in a unit test of one worker."""
    with pytest.raises(ConfigError, match="no configuration or launch script"):
        read(tmp_path, "config = {'actor_rollout_ref': {'model': {'path': 'a/b'}}, 'trainer': {}}\n", "test_worker.py")


def test_a_folder_of_an_openrlhf_set_is_its_configuration_and_a_decision(tmp_path):
    """`--dataset name@folder`: the whole text was written as the name of a set on the hub."""
    draft = read(tmp_path, "deepspeed --module openrlhf.cli.train_sft --pretrain a/b --dataset x/y@part\n")
    assert draft.spec["dataset"]["train"]["huggingFace"] == {
        "path": "x/y",
        "name": "part",
        "columns": {"prompt": "input"},
    }
    assert any("part is a folder of x/y there" in what for what in draft.decisions)


def test_an_adapter_that_goes_on_being_trained_is_a_decision(tmp_path):
    asked = "model.path: an adapter that is there"
    for more, said in ((", is_trainable=True", True), ("", False)):
        text = f"{TRL}model = PeftModel.from_pretrained(base, 'adapter'{more})\nargs = GRPOConfig(beta=0.1)\n{END}"
        decisions = read(tmp_path, text, "train.py", "num_processes=1").decisions
        assert any(what.startswith(asked) for what in decisions) == said


def test_a_file_with_a_byte_order_mark_and_a_list_that_a_dataclass_makes_are_read(tmp_path):
    """As editors on Windows write it; `field(default_factory=lambda: [...])` was refused as unknown."""
    text = (
        "\ufefffrom trl import GRPOConfig, GRPOTrainer\n@dataclass\nclass Options:\n"
        "    names: list = field(default_factory=lambda: ['q_proj'])\n    rank: int = field(metadata={}, default=4)\n"
        "peft = LoraConfig(r=options.rank, target_modules=options.names)\nargs = GRPOConfig(beta=0.1)\n"
    )
    draft = read(tmp_path, text + END, "train.py", "num_processes=1")
    assert draft.spec["trainer"]["lora"] == {"rank": 4, "alpha": 32.0, "targets": ["q_proj"]}
