"""
accelerate launch --num_processes 4 \
    grpo.py \
    --model_name_or_path Qwen/Qwen3-0.6B \
    --output_dir sums \
    --learning_rate 1e-5
"""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser
from trl.rewards import accuracy_reward

BATCH = 8


def long_enough(completions, **kwargs):
    return [1.0 for _ in completions]


def main():
    script_args, model_args = TrlParser((ModelConfig,)).parse_args_and_config()
    config = {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.3}
    training_args = GRPOConfig(
        output_dir=script_args.output_dir,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=8,
        max_completion_length=256,
        max_steps=100,
        beta=0.04,
        use_vllm=True,
        scale_rewards="none",
        **config,
    )
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        reward_funcs=[accuracy_reward, long_enough],
        train_dataset=load_dataset("AI-MO/NuminaMath-TIR", split="train[:5%]"),
    )
    trainer.train()


raise SystemExit("this file is never run")
