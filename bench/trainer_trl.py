"""TRL's side of `bench/trainer.py`: its GRPOTrainer on rows that are given, one step for each line of stdin.

A program for TRL's own environment; knows nothing of this project. Answers each line with the step's seconds as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever libraries print is no answer


class GivenRows(GRPOTrainer):
    """Trains on rows that are given, where TRL would sample."""

    rows: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        return dict(self.rows)


class Paced(TrainerCallback):
    """Begins a step when it is told to."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not sys.stdin.readline():
            raise SystemExit(0)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        taken = {"wall_s": time.perf_counter() - self._wall, "cpu_s": time.process_time() - self._cpu}
        answers.write(json.dumps(taken) + "\n")
        answers.flush()


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    rows = {name: torch.from_numpy(array) for name, array in np.load(given["rows"]).items()}
    count = len(rows["prompt_ids"])
    bfloat16 = given["precision"] == "bfloat16"
    config = GRPOConfig(
        output_dir=given["home"], use_cpu=True, bf16=bfloat16, fp16=False, report_to="none", save_strategy="no",
        logging_strategy="no", disable_tqdm=True, max_steps=given["steps"], learning_rate=1e-6, beta=0.0,
        per_device_train_batch_size=count, gradient_accumulation_steps=1, num_generations=given["size"],
        max_completion_length=rows["completion_ids"].shape[1], gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["1"] * count})
    trainer = GivenRows(
        given["model"], reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config,
        train_dataset=prompts, callbacks=[Paced()],
    )  # fmt: skip
    trainer.rows = {**rows, "num_items_in_batch": rows["completion_mask"].sum()}
    trainer.train()


if __name__ == "__main__":
    main()
