deepspeed --module openrlhf.cli.train_sft \
   --data.dataset Open-Orca/OpenOrca --data.input_key question --data.output_key response --data.max_len 2048 \
   --train.batch_size 256 --train.max_epochs 1 --model.model_name_or_path meta-llama/Meta-Llama-3-8B \
   --adam.lr 5e-6 --ds.zero_stage 2 --ds.param_dtype bf16 --model.gradient_checkpointing_enable
