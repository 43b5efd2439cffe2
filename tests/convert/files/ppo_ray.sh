set -x
read -r -d '' ARGUMENTS <<EOF
openrlhf.cli.train_ppo_ray \
   --pretrain meta-llama/Meta-Llama-3-8B \
   --remote_rm_url http://localhost:5000/get_reward \
   --prompt_data OpenRLHF/prompts --input_key context --max_samples 20000 \
   --rollout_batch_size 128 --n_samples_per_prompt 8 --train_batch_size 256 \
   --prompt_max_len 1024 --generate_max_len 1024 \
   --advantage_estimator group_norm --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3 \
   --eps_clip_low_high 0.2 0.27 --actor_learning_rate 5e-7 \
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 4 --vllm_tensor_parallel_size 2 \
   --colocate_all_models --zero_stage 3 --bf16 --wandb_key hidden
EOF
if [[ ${1} != "slurm" ]]; then
    ray job submit --address="http://127.0.0.1:8265" -- python3 -m $ARGUMENTS
fi
