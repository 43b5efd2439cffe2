"""OpenRLHF's flags of RL, SFT, DPO and reward models: dotted ones, and the flat ones of before."""

from dataclasses import replace

from areal.convert.draft import Carried, JobDraft, model_source, on_or_off
from areal.errors import ConfigError
from areal.yaml_file.table import read_table

_ADVANCED = "algorithm.advanced"
_TABLE = read_table("areal.convert", "fields.yaml")["openrlhf"]
_TRAININGS = {"train_sft": "SFT", "train_dpo": "DPO", "train_rm": "RewardModel"}
_RATES = {"SFT": 5e-6, "DPO": 1e-5, "RewardModel": 9e-6}
_FULL = on_or_off("full", "none")
_CARRIED: dict[str, Carried] = {
    **_TABLE["carried"],
    "actor.gradient_checkpointing_enable": ("trainer.recompute", _FULL),
    "model.gradient_checkpointing_enable": ("trainer.recompute", _FULL),
    "ds.bf16": ("trainer.precision", on_or_off("bfloat16", "float32")),
    "ds.param_dtype": ("trainer.precision", lambda kind: "float32" if "32" in str(kind) else "bfloat16"),
    "ds.adam_offload": ("trainer.optimizerState", on_or_off("cpu", "float32")),
}


def translate(draft: JobDraft) -> None:
    """The whole command."""
    task, old = draft.foreign.task, draft.foreign.values
    kind = _TRAININGS.get(task)
    if kind is None and task.startswith("train_") and "ppo" not in task:
        raise ConfigError(f"{draft.foreign.file}: {task} has no equivalent here", fix="RL, SFT, DPO and RM have one.")
    renamed = {_dotted(name, kind): name for name in old}
    draft.foreign = replace(draft.foreign, values={new: old[name] for new, name in renamed.items()})
    draft.name_job("ckpt.output_dir", default=draft.foreign.file.stem)
    data = "data.prompt_dataset" if draft.has("data.prompt_dataset") else "data.dataset"
    column = str(draft.get("data.input_key", "input")) if kind in (None, "SFT") else "prompt"
    source, _, folder = str(draft.get(data, "")).partition("@")
    if folder and isinstance(draft.get(data), str):
        draft.foreign = replace(draft.foreign, values={**draft.foreign.values, data: source})
        draft.decide(f"dataset.train.huggingFace.name: {folder} is a folder of {source} there, a configuration here")
    split, prompt = str(draft.get("data.prompt_split", "train")), "" if column == "prompt" else column
    draft.put_rows(data, "train", split=split, config=folder, prompt=prompt)
    draft.rows = draft.rows or draft.get("data.max_samples")
    draft.note(["data.input_key", "data.prompt_split"], "dataset.train.huggingFace.columns", column)
    draft.note("data.max_samples", "dataset.train", why="the first so many rows there; all here, and steps for so many")
    steps = _fixed_rows(draft, kind) if kind else _rl(draft)
    _optimizer(draft, "" if kind else "actor.", steps, _RATES.get(str(kind), 1e-6))
    draft.put_interval("checkpoint.intervalSteps", "ckpt.save_steps")
    keys = ("ds.lora.rank", "ds.lora.alpha", "ds.lora.target_modules")
    draft.put_lora(*keys, usual=(0, 16), wanted=draft.number(keys[0], 0) > 0)
    draft.apply(_CARRIED, "openrlhf", ("algo.", "actor.", "critic.", *(name for name in old if "." not in name)))
    draft.foreign = replace(draft.foreign, values=old)
    for entries in (draft.carried, draft.differs, draft.dropped):  # the lists name keys as the command does
        entries[:] = [replace(entry, key=renamed.get(entry.key, entry.key)) for entry in entries]


def _dotted(name: str, kind: str | None) -> str:
    """A flat flag by its dotted name."""
    new: str = _TABLE["dotted"].get(name, name)
    if kind and new.startswith(("actor.model_name", "actor.gradient")):
        return new.replace("actor.", "model.", 1)
    return new.removeprefix("actor.") if kind else new


def _fixed_rows(draft: JobDraft, name: str) -> int | None:
    draft.put_model("model.model_name_or_path")
    batch = int(draft.number("train.batch_size", 128))
    draft.write("training.name", name)
    draft.put("train.batch_size", "training.batchSize", default=128)
    draft.put("data.max_len", "training.maxTokens", default=2048 if name == "SFT" else 512)
    if name == "SFT":
        draft.put("data.output_key", "training.answerField")
    else:
        columns = {column: str(draft.get(f"data.{column}_key", column)) for column in ("chosen", "rejected")}
        if "huggingFace" in draft.spec["dataset"]["train"] and any(key != column for column, key in columns.items()):
            draft.write("dataset.train.huggingFace.columns", columns)
        draft.note(["data.chosen_key", "data.rejected_key"], "dataset.train", columns)
    if name == "DPO":
        draft.fill(_TABLE["dpo"])
        draft.join("training.loss", "ipo" if draft.get("model.ipo_enable") else "sigmoid", "model.ipo_enable")
        draft.note("ref.offload", "training")
    draft.write("trainer.gpus", 8)
    draft.decide("trainer.gpus: the command doesn't say how many; 8 are here")
    return draft.put_steps("training", batch, epochs="train.max_epochs", usual=2 if name == "SFT" else 1)


def _rl(draft: JobDraft) -> int | None:
    draft.put_model("actor.model_name_or_path")
    found = draft.choose("algo.advantage.estimator", "", _TABLE["names"], "gae", what="algorithm.name") or "GRPO"
    name = "GSPO" if draft.get("actor.policy_loss_type") == "gspo" else str(found)
    draft.join("algorithm.name", name, "algo.advantage.estimator", "actor.policy_loss_type")
    draft.fill(_TABLE["rl"])
    batch, size = int(draft.number("rollout.batch_size", 1024)), int(draft.number("rollout.n_samples_per_prompt", 1))
    draft.write("rollout.maxConcurrentRollouts", batch)
    trained = int(draft.number("train.batch_size", 128))
    updates = draft.whole(batch * size, trained, "algorithm.miniBatches")
    why = f"samples there, a count here: {batch * size} / {trained}"
    draft.put("train.batch_size", "algorithm.miniBatches", updates, default=128, why=why)
    steps = draft.put_steps("algorithm", batch, epochs="train.num_episodes", usual=1)
    draft.use_once("train.max_epochs", updates)
    lag = int(draft.number("train.async_queue_size", 1)) if draft.get("train.async_enable") else 0
    draft.join("algorithm.maxStaleness", lag, "train.async_enable", "train.async_queue_size")
    _lengths(draft)
    both = draft.number("actor.eps_clip", 0.2)
    low, high = draft.get("actor.eps_clip_low_high", [both, both])
    draft.write("algorithm.clipHigh", float(high))
    draft.join("algorithm.clipLow", float(low), "actor.eps_clip", "actor.eps_clip_low_high")
    if name == "PPO":
        draft.fill(_TABLE["critic"])
        if draft.number("critic.freezing_steps", -1) > 0:
            draft.put("critic.freezing_steps", "algorithm.critic.warmupSteps")
    draft.drop("algo.advantage.lambd", "GAE's λ is for a critic")
    if draft.get("algo.advantage.no_std_norm"):
        draft.put("algo.advantage.no_std_norm", f"{_ADVANCED}.advantageStd", "none")
    if name not in ("PPO", "REINFORCE++"):
        kept = "filter" if draft.get("algo.dynamic_filtering_enable") else "keep"
        draft.join("algorithm.zeroVariance", kept, "algo.dynamic_filtering_enable")
    draft.note(
        "algo.dynamic_filtering_range", "algorithm.zeroVariance", None, "a range of means there, equal rewards here"
    )
    _divergence(draft)
    _correction(draft)
    _scores(draft)
    _machines(draft)
    return steps


def _lengths(draft: JobDraft) -> None:
    parts = draft.number("data.prompt_max_len", 1024) + draft.number("rollout.max_new_tokens", 1024)
    longest = int(draft.number("data.max_len", parts if draft.has("data.prompt_max_len") else 2048))
    answer = int(draft.number("rollout.max_new_tokens", max(1, longest // 2)))
    draft.join("rollout.maxSampleTokens", longest, "data.max_len")
    draft.join("rollout.sampling.maxNewTokens", answer, "rollout.max_new_tokens")
    draft.note("data.prompt_max_len", "rollout.maxSampleTokens", longest, "a prompt's limit there, both here")
    if not draft.has("rollout.max_new_tokens"):
        draft.decide(f"rollout.sampling.maxNewTokens: what the prompt leaves of {longest} there; {answer} is here")


def _divergence(draft: JobDraft) -> None:
    weight = float(draft.number("algo.kl.init_coef", 0.01))
    keys = ["algo.kl.init_coef", "algo.kl.use_loss", "algo.kl.estimator"]
    where = "loss" if draft.get("algo.kl.use_loss") else "reward"
    kl = {
        "coefficient": weight,
        **({"as": where, "estimator": str(draft.get("algo.kl.estimator", "k1"))} if weight else {}),
    }
    draft.join("algorithm.kl", kl, *keys)
    if draft.has("algo.kl.target"):
        draft.decide("algorithm.kl.coefficient: adaptive there, fixed here")
    draft.drop(["algo.kl.target", "algo.kl.horizon"], "the coefficient is fixed here")


def _correction(draft: JobDraft) -> None:
    keys = draft.below("algo.advantage.is_correction")
    if not draft.get("algo.advantage.is_correction_enable"):
        draft.drop(keys, "off there; tokens are always weighed by π_prox/π_behav here")
        return
    low, high = (float(bound) for bound in draft.get("algo.advantage.is_correction_threshold", [0.5, 5.0]))
    if (kind := str(draft.get("algo.advantage.is_correction_type", "tis"))) == "tis":
        draft.join(f"{_ADVANCED}.truncate", {"lower": low, "upper": high}, *keys)
        draft.write(f"{_ADVANCED}.rejection", {"metric": "ratio", "upper": 2 * high})
        return
    level = {"level": "sequence", "aggregate": "mean"} if kind == "seq-mask-tis" else {}
    draft.join(f"{_ADVANCED}.rejection", {"metric": "ratio", **level, "lower": low, "upper": high}, *keys)


def _scores(draft: JobDraft) -> None:
    limit = float(max(abs(each) for each in draft.get("reward.clip_range", [-10, 10])))
    draft.join(f"{_ADVANCED}.rewardClip", limit, "reward.clip_range")
    if draft.has("reward.overlong_buffer_len"):
        draft.put(
            "reward.overlong_buffer_len", "algorithm.overlong.window", int(draft.number("reward.overlong_buffer_len"))
        )
        draft.put("reward.overlong_penalty_factor", "algorithm.overlong.factor", default=1.0)
    url = draft.get("reward.remote_url") or draft.get("train.agent_func_path")
    if (model := draft.get("reward.model_name_or_path")) and not url:
        draft.write("reward.verifier", "model")
        draft.put("reward.model_name_or_path", "reward.model.path", model_source(str(model))[1])
        draft.decide(f"reward.model.path: {model} must be a sequence-classification model with one label")
    else:
        draft.put_reward(
            str(draft.get("data.label_key", "answer")),
            _TABLE["recipe"].format(url=url or "not named"),
            why=f"score as {url} does there",
        )
        draft.note(["reward.remote_url", "train.agent_func_path"], "recipe.file", "recipe.py")
    draft.note("data.label_key", "reward.answerField", draft.get("data.label_key"))
    draft.drop("reward.normalize_enable", "a running mean there; advantages are whitened here")


def _machines(draft: JobDraft) -> None:
    per_node = int(draft.number("actor.num_gpus_per_node", 8))
    world = per_node * int(draft.number("actor.num_nodes", 1))
    engines = max(1, int(draft.number("vllm.num_engines", 1)))
    tensor = int(draft.number("vllm.tensor_parallel_size", 1))
    draft.put_gpus(world, per_node)
    draft.put_engine(engines, tensor)
    shared = bool(draft.get("train.colocate_all")) and not draft.share(per_node)
    why = "GPUs shared by all models there; trainer and generation have their own here" if shared else ""
    draft.note(["actor.num_nodes", "actor.num_gpus_per_node"], "trainer", dict(draft.spec["trainer"]), why)
    draft.note(["vllm.num_engines", "vllm.tensor_parallel_size"], "generation", dict(draft.spec["generation"]), why)
    if shared:
        draft.decide(f"trainer.gpus: {world} GPUs do everything there; {world} train and {engines * tensor} serve here")
    draft.drop("vllm.gpu_memory_utilization", "a share of a GPU that trains as well there; SGLang chooses here")


def _optimizer(draft: JobDraft, block: str, steps: int | None, rate: float) -> None:
    draft.fill({
        f"{block}adam.lr": ("optimizer.learningRate", rate), f"{block}adam.betas": ("optimizer.betas", [0.9, 0.95]),
        f"{block}adam.weight_decay": ("optimizer.weightDecay", 0.0),
        f"{block}min_lr_ratio": ("optimizer.minLrRatio", 0.1),
    })  # fmt: skip
    draft.write("optimizer.minLrRatio", float(draft.number(f"{block}min_lr_ratio", 0.1)))
    draft.put_schedule(f"{block}lr_scheduler", "cosine_with_min_lr")
    draft.put_warmup(steps, share=f"{block}lr_warmup_ratio", usual=0.03)
