#!/usr/bin/env bash
set -xeuo pipefail

# what is trained
adv_estimator=grpo
train_batch_size=1024
max_prompt_length=512
max_response_length=$((1024 * 2))
gsm8k=$HOME/data/gsm8k/train.parquet
math=$HOME/data/math-lighteval/train.parquet
files="['$gsm8k', '$math']"
MODEL_PATH=${MODEL_PATH:-"Qwen/Qwen3-8B"}
backend=fsdp

function now() {
    date +%d
}

if [[ $backend == "megatron" ]]; then
    EXTRA="actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
elif [ "$backend" = "fsdp" ] && [ -n "$MODEL_PATH" ]; then
    EXTRA="
        actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \
        actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((max_prompt_length + max_response_length) * 3))"
fi

ROLLOUT=(
    actor_rollout_ref.rollout.name=sglang   # the engine
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.tensor_model_parallel_size=2
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6
)

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=$adv_estimator \
    data.train_files="$files" \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=${train_batch_size} \
    data.max_prompt_length=$max_prompt_length \
    data.max_response_length=$max_response_length \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    actor_rollout_ref.model.path="$MODEL_PATH" \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    algorithm.use_kl_in_reward=False \
    +algorithm.own_switch=True \
    trainer.logger='["console","wandb"]' \
    trainer.project_name='sums' \
    trainer.experiment_name="eight-$(date +%Y)" \
    trainer.n_gpus_per_node=${GPUS} \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 \
    "${ROLLOUT[@]}" $EXTRA $@
