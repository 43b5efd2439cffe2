"""Keys that a stranger's file takes for granted: where weights come from, a program's defaults, what its code does."""

from __future__ import annotations

import pytest
from areal.convert.convert import lists
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
    assert "trainer.val_only: nothing is trained there" in decided
    assert "dataset.train: the first 100 rows" in decided
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
