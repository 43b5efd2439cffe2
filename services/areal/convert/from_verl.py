"""verl's configurations: PPO and its kin, SFT. Defaults as in its own configuration.

There GPUs are shared by generation and trainer, in turn. So they are here on one machine; on several each has its own.
"""

import math
from dataclasses import replace

from areal.convert.draft import Carried, JobDraft, local, model_source, on_or_off
from areal.yaml_file.table import read_table

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_TABLE = read_table("areal.convert", "fields.yaml")["verl"]
_ADVANCED, _MEGATRON = "algorithm.advanced", "actor_rollout_ref.actor.megatron"
_LOSSES = {"vanilla": "", "gspo": "GSPO", "sapo": "SAPO", "cispo": "CISPO", "dppo_tv": "DPPO"}
_AGGREGATIONS = {"token-mean": "token", "seq-mean-token-mean": "sequence", "seq-mean-token-sum-norm": "constant"}
_STREAM = "async_training."
_BUILT_IN = (
    "ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "fully_async_ppo_trainer", "fully_async_ppo_megatron_trainer",
)  # fmt: skip
_ENGINE = (1e-3, [0.9, 0.999], "constant", 0.0)  # what sft_trainer leaves out; fsdp_sft_trainer has its own
_FULL = on_or_off("full", "none")
_CARRIED: dict[str, Carried] = {
    **_TABLE["carried"],
    f"{_MODEL}.enable_gradient_checkpointing": ("trainer.recompute", _FULL),
    "model.enable_gradient_checkpointing": ("trainer.recompute", _FULL),
    f"{_ROLLOUT}.top_k": ("rollout.sampling.topK", lambda k: max(0, int(k))),
}


def translate(draft: JobDraft) -> None:
    """The whole file."""
    names = {key: _as_before(key) for key in draft.foreign.values}
    values = {names[key]: value for key, value in draft.foreign.values.items()}
    for key in [key for key, value in values.items() if value == "after_each_epoch"]:
        values[key] = None
        block = "checkpoint" if "save" in key else "evaluation"
        draft.decide(f"{block}.intervalSteps: {key} is after_each_epoch there")
    draft.foreign = replace(draft.foreign, values=values)
    draft.name_job("trainer.project_name", "trainer.experiment_name", default=draft.foreign.file.stem)
    named = str(draft.get("config-name", _BUILT_IN[0])).removesuffix(".yaml")
    if named not in _BUILT_IN:
        draft.decide(f"spec: the script starts from {named}.yaml, which is not here; what it sets is missing")
    if {".", "/"} & set(program := draft.foreign.task) and not program.endswith("fully_async_main"):
        draft.decide(f"spec: {program} is a program of its own, built on verl; what it does otherwise isn't known here")
    column = str(draft.get("data.prompt_key", "prompt"))
    draft.put_rows("data.train_files", "train", prompt="" if column == "prompt" else column)
    if "sft" in draft.foreign.task or draft.has("model.partial_pretrain") or draft.has("model.path"):
        _sft(draft)
    else:
        _rl(draft)
    _start(draft)
    draft.apply(_CARRIED, "verl", ("",))


def _start(draft: JobDraft) -> None:
    """Settings that its author takes for granted: weights to go on from, rows that are left out, the chat template."""
    values = draft.foreign.values
    if values.get("trainer.resume_mode") == "resume_path" and values.get("trainer.resume_from_path"):
        draft.decide("model.path: trainer.resume_from_path goes on from a checkpoint there; the start model is here")
    for key in filter(values.get, _TABLE["weights"]):
        draft.decide(f"model.path: weights are {key}'s there, model.path's here")
    if (most := draft.number("data.train_max_samples", -1)) > 0:
        draft.decide(f"dataset.train: {most} rows of it are trained there (data.train_max_samples)")
    if draft.get("trainer.val_only"):
        draft.decide("spec: nothing is trained there (trainer.val_only)")
    block = "data.apply_chat_template_kwargs."
    said = {key.removeprefix(block): draft.get(key) for key in draft.below(block)}
    said |= {"enable_thinking": draft.get(thinks)} if draft.has(thinks := "data.enable_thinking_default") else {}
    draft.join("model.chatTemplateKwargs", said or None, *draft.below(block), thinks)


def _as_before(key: str) -> str:
    """A key of verl's newest configuration by the name that it had before."""
    return next((old + key.removeprefix(new) for new, old in _TABLE["renamed"].items() if key.startswith(new)), key)


def _sft(draft: JobDraft) -> None:
    draft.put_model("model.path" if draft.has("model.path") else "model.partial_pretrain")
    batch = draft.number("data.train_batch_size", 256)
    draft.write("training.name", "SFT")
    draft.put("data.train_batch_size", "training.batchSize", default=batch)
    draft.put("data.max_length", "training.maxTokens", default=1024)
    draft.note(["data.truncation", "data.prompt_key", "data.prompt_dict_keys"], "dataset.train")
    draft.put("data.response_key", "training.answerField", default="answer")
    draft.note("data.response_dict_keys", "training.answerField")
    steps = draft.put_steps(
        "training", batch, epochs="trainer.total_epochs", usual=4, total="trainer.total_training_steps"
    )
    older = draft.foreign.task == "fsdp_sft_trainer" or not draft.has("model.path")
    _optimizer(draft, "optim", steps, (1e-5, [0.9, 0.95], "cosine", 0.1) if older else _ENGINE)
    draft.drop("model", "verl's own defaults are known")
    _held_out(draft)
    per_node = draft.number("trainer.n_gpus_per_node", 8)
    context = int(draft.number("ulysses_sequence_parallel_size", 1))
    draft.put_gpus(per_node * draft.number("trainer.nnodes", 1), per_node, context=context)
    gpus = ["trainer.n_gpus_per_node", "trainer.nnodes", "ulysses_sequence_parallel_size"]
    draft.note(gpus, "trainer", draft.spec["trainer"])
    _lora(draft, "model")


def _rl(draft: JobDraft) -> None:
    draft.put_model(f"{_MODEL}.path", tokenizer=f"{_MODEL}.tokenizer_path")
    streamed = bool(draft.below(_STREAM))
    batch = draft.number("data.train_batch_size", 1024) if not streamed else _between_versions(draft)
    name = _algorithm(draft, batch)
    draft.put("data.train_batch_size", "algorithm.batchSize", batch, default=batch)
    ahead = draft.spec["algorithm"].get("maxStaleness", 0) if streamed else 0
    draft.write("rollout.maxConcurrentRollouts", batch * (1 + ahead))
    total, epochs = "rollout.total_rollout_steps", f"{'rollout' if streamed else 'trainer'}.total_epochs"
    if streamed and draft.has(total):
        steps: int | None = max(1, draft.number(total) // batch)
        draft.join("algorithm.maxSteps", steps, total, why=f"rows there, steps of {batch} here")
        draft.drop(epochs, f"{total} decides")
    else:
        steps = draft.put_steps("algorithm", batch, epochs=epochs, usual=30, total="trainer.total_training_steps")
    draft.fill(_TABLE["rl"])
    if (agents := draft.number(many := f"{_ROLLOUT}.n_agent", 1)) > 1:  # Search-R1 and its kin repeat rows so often
        draft.put(many, "algorithm.groupSize", agents * draft.number(f"{_ROLLOUT}.n", 1), why="of rollout.n each there")
    mini = draft.number(f"{_ACTOR}.ppo_mini_batch_size", 256)
    count = draft.whole(batch, mini, "algorithm.miniBatches")
    why = f"a size there, a count here: {batch} / {mini}"
    draft.put(f"{_ACTOR}.ppo_mini_batch_size", "algorithm.miniBatches", count, default=mini, why=why)
    if not streamed:
        lag = "synchronous there; raise it for generation beside training"
        draft.join("algorithm.maxStaleness", 0, f"{_ROLLOUT}.mode", why=lag)
    draft.use_once(f"{_ACTOR}.ppo_epochs", count)
    _lengths(draft)
    _loss(draft, name)
    _divergence(draft, name)
    _correction(draft)
    _scores(draft)
    _optimizer(draft, f"{_ACTOR}.optim", steps, (1e-6, [0.9, 0.999], "constant", 0.0))
    if name == "PPO":
        draft.fill(_TABLE["critic"])
        draft.write("algorithm.critic.bootstrap", False)
        draft.start_model_only("critic.model.path", f"{_MODEL}.path", "algorithm.critic")
    draft.start_model_only("actor_rollout_ref.ref.model.path", f"{_MODEL}.path", "algorithm.kl")
    draft.drop(["trainer.critic_warmup", "algorithm.lam"], "no critic there")
    _held_out(draft)
    _machines(draft)
    _lora(draft, _MODEL)


def _between_versions(draft: JobDraft) -> int:
    """Rows between two versions of a training that samples are streamed to, verl's fully asynchronous one."""
    counts = {f"{_STREAM}require_batches": 1, f"{_STREAM}trigger_parameter_sync_step": 4}
    batch = math.prod(
        [int(draft.number(key, usual)) for key, usual in {**counts, f"{_ACTOR}.ppo_mini_batch_size": 256}.items()]
    )
    draft.note(counts, "algorithm.batchSize", batch, "updates between two versions there; their rows are a step here")
    lag = math.ceil(draft.number(share := f"{_STREAM}staleness_threshold", 0.1))
    why = "a share of the rows between two versions there, whole versions here"
    draft.join("algorithm.maxStaleness", lag, share, why=why)
    if draft.get(f"{_STREAM}use_rollout_log_probs", True) and not draft.get(f"{_STREAM}compute_prox_log_prob", False):
        draft.write(f"{_ADVANCED}.proximal", "behaviour")
    draft.note([f"{_STREAM}use_rollout_log_probs", f"{_STREAM}compute_prox_log_prob"], f"{_ADVANCED}.proximal")
    return batch


def _algorithm(draft: JobDraft, batch: int) -> str:
    wanted = str(draft.get("algorithm.adv_estimator", "gae"))
    name = draft.choose("algorithm.adv_estimator", "", _TABLE["names"], "gae", what="algorithm.name") or "GRPO"
    mode = f"{_ACTOR}.policy_loss.loss_mode"
    loss = draft.choose(mode, "", _LOSSES, "vanilla", what="algorithm.name")
    name = loss if loss and name == "GRPO" else name
    draft.write("algorithm.name", name)
    why = "" if wanted in _TABLE["names"] else "the nearest here"
    draft.note(["algorithm.adv_estimator", mode], "algorithm.name", name, why)
    scaled = "algorithm.norm_adv_by_std_in_grpo"
    if name in ("GRPO", "GSPO", "SAPO", "CISPO", "DPPO"):
        draft.join(f"{_ADVANCED}.advantageStd", "group" if draft.get(scaled, True) else "none", scaled)
        draft.write(f"{_ADVANCED}.advantageUnbiased", True)
    draft.drop(scaled, f"{name} has no deviation")
    block = "algorithm.filter_groups"
    switches = [f"{block}.enable", "trainer.rejection_sample"]  # the latter of Skywork's and rLLM's forks
    if (filtered := any(map(draft.get, switches))) or name not in ("PPO", "REINFORCE++"):
        draft.join("algorithm.zeroVariance", "filter" if filtered else "keep", *switches)
    draft.note(f"{block}.metric", "algorithm.zeroVariance", "filter", "rewards are compared here")
    if filtered and (batches := draft.number(f"{block}.max_num_gen_batches", 0)) > 0:
        why = "batches there, groups here"
        draft.put(f"{block}.max_num_gen_batches", "rollout.maxFilteredPerStep", batches * batch, why=why)
    draft.drop(
        [f"{block}.max_num_gen_batches", f"{block}.enable", "data.gen_batch_size"],
        "a filtered group is replaced one by one here",
    )
    return str(name)


def _lengths(draft: JobDraft) -> None:
    prompt, answer = draft.number("data.max_prompt_length", 512), draft.number("data.max_response_length", 512)
    draft.put("data.max_response_length", "rollout.sampling.maxNewTokens", default=answer)
    why = "a prompt's limit there, prompt and answer here"
    draft.put("data.max_prompt_length", "rollout.maxSampleTokens", prompt + answer, default=prompt, why=why)
    cut = str(draft.get("data.truncation", "error"))
    draft.join(
        "dataset.longPrompts",
        "drop" if draft.get("data.filter_overlong_prompts") else "refuse",
        "data.filter_overlong_prompts",
    )
    draft.drop(
        "data.truncation", f"prompts are never cut here, {cut} there" if cut != "error" else "prompts are never cut"
    )
    draft.note("data.prompt_key", "dataset.train.huggingFace.columns")


def _loss(draft: JobDraft, name: str) -> None:
    both = draft.number(f"{_ACTOR}.clip_ratio", 0.2)
    low, high = draft.number(f"{_ACTOR}.clip_ratio_low", both), draft.number(f"{_ACTOR}.clip_ratio_high", both)
    why = "" if low <= 1 else "no lower bound"
    draft.put(f"{_ACTOR}.clip_ratio_low", "algorithm.clipLow", min(low, 1.0), default=low, why=why)
    draft.put(f"{_ACTOR}.clip_ratio_high", "algorithm.clipHigh", default=high)
    draft.note(f"{_ACTOR}.clip_ratio", "algorithm.clipLow", low)
    how = f"{_ACTOR}.loss_agg_mode"
    if name in ("GSPO", "SAPO"):
        draft.join("algorithm.lossAggregation", "sequence", how, why=f"{name} there is always by sequence")
    else:
        draft.choose(how, "algorithm.lossAggregation", _AGGREGATIONS, "token-mean")
    if name not in ("SAPO", "CISPO", "GSPO", "DPPO"):
        draft.put(f"{_ACTOR}.clip_ratio_c", f"{_ADVANCED}.dualClip", default=3.0)
    draft.drop(f"{_ACTOR}.clip_ratio_c", f"{name} has no dual clip")


def _divergence(draft: JobDraft, name: str) -> None:
    rewarded = ["algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"]
    lost = [f"{_ACTOR}.kl_loss_coef", f"{_ACTOR}.kl_loss_type"]
    switches = ["algorithm.use_kl_in_reward", f"{_ACTOR}.use_kl_loss"]
    in_reward, in_loss = (bool(draft.get(key, False)) for key in switches)
    adaptive = draft.below("algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl")
    if in_reward and in_loss:
        draft.decide("algorithm.kl: in the reward and in the loss there; the loss's is here")
    if in_reward and draft.get("algorithm.kl_ctrl.type") == "adaptive":
        draft.decide("algorithm.kl.coefficient: adaptive there, fixed here")
    if in_loss or in_reward:
        (weight, kind), where, usual = (lost, "loss", "low_var_kl") if in_loss else (rewarded, "reward", "kl")
        draft.put(weight, "algorithm.kl.coefficient", default=0.001)
        draft.write("algorithm.kl.as", where)
        given = str(draft.get(kind, usual))
        why = f"{given} there: its gradient is k2's" if given.endswith("+") else ""
        draft.choose(kind, "algorithm.kl.estimator", _TABLE["divergences"], usual, why=why)
    elif name.startswith("REINFORCE"):
        draft.write("algorithm.kl", {"coefficient": 0.0})
    draft.note(switches, "algorithm.kl", draft.spec["algorithm"].get("kl", "none"))
    draft.drop([*rewarded, *lost], "that divergence is off there")
    draft.drop(adaptive, "the coefficient is fixed here")


def _correction(draft: JobDraft) -> None:
    block = "algorithm.rollout_correction"
    level, bound = draft.get(f"{block}.rollout_is"), draft.get(f"{block}.rollout_is_threshold", 2.0)
    if level in ("token", "sequence") and isinstance(bound, int | float):
        draft.write(f"{_ADVANCED}.weight", "token" if level == "token" else "sequenceProduct")
        draft.join(
            f"{_ADVANCED}.truncate", {"upper": float(bound)}, f"{block}.rollout_is", f"{block}.rollout_is_threshold"
        )
        draft.write(f"{_ADVANCED}.rejection", {"metric": "ratio", "upper": max(5.0, 2 * float(bound))})
    for bypass in filter(draft.get, (f"{block}.bypass_mode", f"{_ACTOR}.use_rollout_log_probs")):
        draft.put(bypass, f"{_ADVANCED}.proximal", "behaviour")
    if rejected := draft.get(f"{block}.rollout_rs"):
        draft.decide(f"{_ADVANCED}.rejection: rollout_rs is {rejected} there, and its bounds are on −log r")
    draft.drop(draft.below(f"{block}."), "off there, or a part without an equivalent")


def _scores(draft: JobDraft) -> None:
    kwargs = "reward_model.reward_kwargs."
    old = "reward_model.overlong_buffer"
    block = old if draft.below(f"{old}.") else f"{kwargs}overlong_buffer_cfg"
    if draft.get(f"{block}.enable"):
        draft.put(f"{block}.len", "algorithm.overlong.window")
        draft.put(f"{block}.penalty_factor", "algorithm.overlong.factor", default=1.0)
        draft.put(f"{kwargs}max_resp_len", "algorithm.overlong.maxTokens")
    draft.drop(draft.below(kwargs, f"{old}."), "the penalty is off there, or says it")
    words = "algorithm.teacher: a teacher judges each sampled token there; name it here (docs/supervised.md)"
    taught = bool(draft.get("distillation.enabled"))
    draft.drop(draft.below("distillation."), "a teacher's, or off there", decide=words if taught else "")
    if draft.get("reward_model.enable"):
        draft.write("reward.verifier", "model")
        source = model_source(str(draft.get("reward_model.model.path", "models/reward")))[1]
        draft.put("reward_model.model.path", "reward.model.path", source)
        own = ["custom_reward_function.path", "custom_reward_function.name"]
        draft.drop(own, "the model scores", decide=f"reward: {draft.get(own[0])} scores there, too; here it doesn't")
        draft.decide(f"reward.model.path: {source} must be a sequence-classification model with one label")
    else:
        path = draft.get("custom_reward_function.path")
        name = str(draft.get("custom_reward_function.name", "compute_score"))
        why = (
            f"{path} is loaded from where it is: take it along"
            if path
            else "name the file of compute_score: there data_source chooses a function"
        )
        recipe = _TABLE["recipe"].format(path=local(str(path or "rewards.py")), name=name)
        draft.put_reward("reward_model.ground_truth", recipe, why=why, own=bool(path))
        draft.note(["custom_reward_function.path", "custom_reward_function.name"], "recipe.file", "recipe.py")
    said = draft.spec["reward"]["verifier"]
    draft.note("reward_model.enable", "reward.verifier", said)
    draft.note(
        ["reward_model.reward_manager", "data.reward_fn_key"],
        "reward.verifier",
        said,
        "a function for each data_source there",
    )


def _optimizer(draft: JobDraft, block: str, steps: int | None, usual: tuple[float, list[float], str, float]) -> None:
    rate, betas, schedule, warmup = usual
    draft.fill({
        f"{block}.lr": ("optimizer.learningRate", rate), f"{block}.weight_decay": ("optimizer.weightDecay", 0.01),
        f"{block}.betas": ("optimizer.betas", betas), f"{block}.clip_grad": ("optimizer.gradClip", None),
        f"{block}.min_lr_ratio": ("optimizer.minLrRatio", None),
    })  # fmt: skip
    names = [f"{block}.{name}" for name in ("lr_scheduler_type", "lr_scheduler", "lr_decay_style", "warmup_style")]
    draft.put_schedule(next((key for key in names if draft.has(key)), names[0]), schedule)
    draft.put_warmup(steps, count=f"{block}.lr_warmup_steps", share=f"{block}.lr_warmup_steps_ratio", usual=warmup)


def _held_out(draft: JobDraft) -> None:
    every, kwargs = draft.number("trainer.test_freq", -1), f"{_ROLLOUT}.val_kwargs"
    if draft.get("data.val_files") and every > 0:
        draft.put_rows("data.val_files", "evaluation")
        draft.put_interval("evaluation.intervalSteps", "trainer.test_freq")
        draft.put("trainer.val_before_train", "evaluation.atStart")
        if draft.get(f"{kwargs}.do_sample") or draft.number(f"{kwargs}.n", 1) > 1:
            draft.put(f"{kwargs}.n", "evaluation.samples", why="beside the greedy answer here")
            if draft.number(f"{kwargs}.temperature", 0) > 0:
                draft.put(f"{kwargs}.temperature", "evaluation.temperature")
        draft.drop(draft.below(f"{kwargs}."), "evaluation is greedy, or as training samples")
    draft.drop(["data.val_files", "trainer.test_freq", "trainer.val_before_train"], "nothing is measured there")
    draft.put_interval("checkpoint.intervalSteps", "trainer.save_freq")


def _machines(draft: JobDraft) -> None:
    """GPUs that are shared there: on one machine here, too; of several half train, half serve."""
    nodes = draft.number("trainer.nnodes", 1)
    world, alone = draft.number("trainer.n_gpus_per_node", 8) * nodes, nodes == 1
    serve = int(draft.number(f"{_ROLLOUT}.tensor_model_parallel_size", 2))
    apart = draft.number("rollout.n_gpus_per_node", 8) * draft.number("rollout.nnodes", 1)
    apart = apart if draft.below(_STREAM) else 0  # servers there have GPUs of their own
    training = world if alone or apart else max(1, world // 2)
    splits = [
        f"{_MEGATRON}.tensor_model_parallel_size",
        f"{_MEGATRON}.context_parallel_size",
        f"{_ACTOR}.ulysses_sequence_parallel_size",
    ]
    tensor, *contexts = (int(draft.number(key, 1)) for key in splits)
    context, why = contexts[0] * contexts[1], ""
    if training % (tensor * context):
        why = f"{world} GPUs there; {training} train here, sharded"
        draft.decide(f"trainer.mesh: {tensor} × {context} there, of {why}")
        tensor, context = 1, 1
    draft.put_gpus(training, draft.number("trainer.n_gpus_per_node", 8), tensor, context)
    draft.note(splits, "trainer.mesh", {"tensor": tensor, "context": context}, why)
    draft.put_engine(max(1, (apart or (world if alone else world - training)) // serve), serve)
    said = f"{world} GPUs shared in turn there; here {training} train and the others serve"
    said = "" if apart or (alone and draft.share(world)) else said
    draft.note(["rollout.n_gpus_per_node", "rollout.nnodes"], "generation.replicas")
    draft.note(["trainer.n_gpus_per_node", "trainer.nnodes"], "trainer", dict(draft.spec["trainer"]), said)
    draft.note(f"{_ROLLOUT}.tensor_model_parallel_size", "generation.engine.tensorParallel", serve)
    draft.drop(f"{_ROLLOUT}.gpu_memory_utilization", "a share of a GPU that trains as well there; SGLang chooses here")
    engine = str(draft.get(f"{_ROLLOUT}.name", "vllm"))
    draft.note(f"{_ROLLOUT}.name", "generation.engine.type", "sglang", "" if engine == "sglang" else f"{engine} there")
    if draft.get(f"{_ROLLOUT}.multi_turn.enable"):
        draft.decide(
            "rollout.workflow: several turns with tools there; write a workflow or an agent (docs/workflows.md)"
        )
    draft.drop(
        draft.below(f"{_ROLLOUT}.multi_turn.", f"{_ROLLOUT}.agent."),
        "turns and tools are a workflow's or an agent's here",
    )


def _lora(draft: JobDraft, block: str) -> None:
    joint = f"{block}.lora." if draft.has(f"{block}.lora.rank") else f"{block}.lora_"
    targets = next(
        (key for key in (f"{joint}target_modules", f"{block}.target_modules") if draft.has(key)),
        f"{block}.target_modules",
    )
    draft.put_lora(f"{joint}rank", f"{joint}alpha", targets, usual=(0, 16), wanted=draft.number(f"{joint}rank", 0) > 0)
    draft.drop(draft.below(f"{block}.lora", f"{block}.exclude_modules"), "adapters here are made as peft makes them")
