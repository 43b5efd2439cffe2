"""Launch scripts as others write them, and their conversion."""

from __future__ import annotations

from areal.convert.convert import convert

VERL = "data.train_files=a.parquet data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 "
TRAINED = VERL + "actor_rollout_ref.model.path=a/b actor_rollout_ref.rollout.n=2 trainer.total_training_steps=3"
TRAINING = f"python3 -m verl.trainer.main_ppo {TRAINED}"


def read(tmp_path, text, name="run.sh", *given):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return convert(file, None, given, rows=80)
