"""TRL's configurations: GRPO, RLOO, SFT, DPO, reward models. Defaults as in its classes (v1).

There a batch is counted in samples: per_device_train_batch_size × processes × steps_per_generation of them are one
generation; here in groups.
"""

import re

from areal.convert.draft import UNSET, Carried, JobDraft, on_or_off
from areal.errors import ConfigError
from areal.yaml_file.table import read_table

_ADVANCED = "algorithm.advanced"
_TABLE = read_table("areal.convert", "fields.yaml")["trl"]
_RATES = {"SFT": 2e-5, "DPO": 1e-6, "RewardModel": 1e-4}
_NAMES = {"sapo": "SAPO", "cispo": "CISPO", "dr_grpo": "DrGRPO"}
_SCALES = {"group": "group", "batch": "batch", "none": "none", "true": "group", "false": "none"}
_PREFERENCES = {"sigmoid": "sigmoid", "ipo": "ipo"}
_CARRIED: dict[str, Carried] = {
    **_TABLE["carried"],
    "gradient_checkpointing": ("trainer.recompute", on_or_off("full", "none")),
    "bf16": ("trainer.precision", on_or_off("bfloat16", "float32")),
    "top_k": ("rollout.sampling.topK", lambda k: max(0, int(k))),
}
_NODE = 8  # GPUs of a machine, which TRL's files don't say


def translate(draft: JobDraft) -> None:
    """The whole file."""
    kind = _kind(draft)
    draft.name_job("output_dir", default=draft.foreign.file.stem)
    draft.put_model("model_name_or_path")
    if re.search(r"-bnb-\dbit|-(AWQ|GPTQ)", str(draft.get("model_name_or_path", ""))):
        draft.decide("model.uri: its weights are quantised; name the model that they were made of")
    draft.put("chat_template", "model.chatTemplate")
    words = draft.below("chat_template_kwargs")
    said = {key.partition(".")[2]: draft.get(key) for key in words if "." in key} or draft.get("chat_template_kwargs")
    draft.join("model.chatTemplateKwargs", said, *words)
    draft.put_rows("dataset_name", "train", split=str(draft.get("dataset_train_split", "train")),
             config=str(draft.get("dataset_config", "")))  # fmt: skip
    draft.note(["dataset_config", "dataset_train_split"], "dataset.train.huggingFace")
    mixed = ", ".join(str(each.get("id", each.get("path"))) for key in ("dataset_mixture.datasets", "datasets")
                      for each in draft.get(key, []) if isinstance(each, dict))  # fmt: skip
    mixture = draft.below("dataset_mixture.", "datasets")
    draft.drop(mixture, "several sources there", decide=f"dataset.train.sources: {mixed} there")
    processes = int(draft.number("num_processes", 1))
    if not draft.has("num_processes"):
        draft.decide("trainer.gpus: how many processes is said nowhere; it is one here (num_processes=N says it)")
    at_once = draft.number("per_device_train_batch_size", 8) * processes
    accumulated = draft.number("gradient_accumulation_steps", 1)
    is_rl = kind in ("GRPO", "RLOO")
    steps = _rl(draft, kind, at_once, accumulated) if is_rl else _fixed_rows(draft, kind, at_once * accumulated)
    draft.note("num_processes", "trainer.gpus", processes)
    draft.put_gpus(processes, _NODE)
    if is_rl:
        tensor = int(draft.number("vllm_tensor_parallel_size", 1))
        beside = draft.get("use_vllm", False) and draft.get("vllm_mode", "colocate") == "server"
        together = not beside and "Async" not in draft.foreign.task and processes <= _NODE
        draft.put_engine(max(1, processes // tensor) if together else 1, tensor)
        shared = together and draft.share(_NODE)
        draft.note("vllm_tensor_parallel_size", "generation.engine.tensorParallel")
        draft.note("vllm_mode", "placement", "shared" if shared else "separate")
    _optimizer(draft, kind, steps)
    _held_out(draft)
    draft.apply(_CARRIED, "trl", ("",))


def _kind(draft: JobDraft) -> str:
    task = draft.foreign.task
    file = draft.foreign.file.absolute()
    names = [task, task.partition("_")[0]] if task else [*re.split(r"[-_.]", file.stem), file.parent.name]
    kind = next((_TABLE["trainings"][name] for name in names if name in _TABLE["trainings"]), None)
    other = next((name for name in names if name in ("orpo", "kto", "cpo", "bco", "ppo", "prm", "gkd", "xpo")), "")
    if kind is None and (other or (task and not draft.has("per_device_train_batch_size"))):
        trains = f"trains by {other or task}, which has no equivalent here"
        raise ConfigError(
            f"{draft.foreign.file} {'configures no training of TRL' if task == file.stem and not other else trains}",
            fix="GRPO, RLOO, SFT, DPO and reward models have one.",
        )
    if kind is None:
        kind = "DPO" if draft.has("beta") else "SFT"
        kind = "GRPO" if draft.has("num_generations") or draft.has("max_completion_length") else kind
        draft.decide(f"training: the file doesn't say which one; it is read as {kind}")
    return kind


def _held_out(draft: JobDraft) -> None:
    train = draft.spec["dataset"]["train"].get("huggingFace")
    if train and draft.get("eval_strategy", "no") == "steps" and draft.has("eval_steps"):
        held_out = {**train, "split": str(draft.get("dataset_test_split", "test"))}
        draft.join("dataset.evaluation.huggingFace", held_out, "eval_strategy", "dataset_test_split")
        draft.put("eval_steps", "evaluation.intervalSteps")
    if draft.get("save_strategy", "steps") == "steps" and draft.number("save_steps", 500) >= 1:
        draft.put("save_steps", "checkpoint.intervalSteps")


def _fixed_rows(draft: JobDraft, name: str, batch: int) -> int | None:
    draft.write("training.name", name)
    why = "a part of the batch there, on each process; the whole here"
    draft.join("training.batchSize", batch, "per_device_train_batch_size", "gradient_accumulation_steps", why=why)
    draft.put("max_seq_length" if draft.has("max_seq_length") else "max_length", "training.maxTokens", default=1024)
    draft.note("max_prompt_length", "training.maxTokens", None, "a prompt's limit there, the whole row's here")
    cut = draft.get("truncation_mode", "keep_start") != "keep_start"
    draft.note(
        "truncation_mode", "training.maxTokens", "the first tokens are kept", "the last are kept there" if cut else ""
    )
    if name == "DPO":
        draft.fill(_TABLE["dpo"])
        loss = draft.get("loss_type", "sigmoid")
        one = loss[0] if isinstance(loss, list) and len(loss) == 1 else loss
        draft.join("training.loss", _PREFERENCES.get(str(one)), *["loss_type"] if str(one) in _PREFERENCES else [])
        draft.drop("loss_type", "no equivalent", decide=f"training.loss: {loss} there")
        draft.drop("precompute_ref_log_probs", "the reference is asked once a row here")
    if name == "RewardModel":
        draft.put("center_rewards_coefficient", "training.centeringWeight")
    for key in ("completion_only_loss", "assistant_only_loss"):
        if draft.get(key) is False and key == "completion_only_loss":
            draft.decide("training: prompts are trained there; only answers are here")
        draft.note(key, "training", "answers are trained")
    return draft.put_steps("training", batch, epochs="num_train_epochs", usual=3, total="max_steps")


def _rl(draft: JobDraft, kind: str, at_once: int, accumulated: int) -> int | None:
    loss = str(draft.get("loss_type", "dapo" if kind == "GRPO" else "grpo"))
    by_sequence = draft.get("importance_sampling_level", "token") == "sequence"
    name = _NAMES.get(loss, "GSPO" if by_sequence else kind)
    draft.write("algorithm.name", name)
    size = int(draft.number("num_generations", 8 if kind == "GRPO" else 2))
    draft.put("num_generations", "algorithm.groupSize", default=size)
    samples = int(draft.number("generation_batch_size", at_once * draft.number("steps_per_generation", accumulated)))
    batch, updates = draft.whole(samples, size, "algorithm.batchSize"), max(1, samples // (at_once * accumulated))
    why = f"samples there, groups here: {samples} / {size}"
    draft.join("algorithm.batchSize", batch, "generation_batch_size", "per_device_train_batch_size", why=why)
    draft.join("algorithm.miniBatches", updates, "gradient_accumulation_steps", "steps_per_generation")
    draft.use_once("num_iterations", updates)
    draft.write("rollout.maxConcurrentRollouts", batch)
    steps = draft.put_steps("algorithm", batch, epochs="num_train_epochs", usual=3, total="max_steps", updates=updates)
    lag = int(draft.number("max_staleness", 4)) if "Async" in draft.foreign.task else 0
    draft.join("algorithm.maxStaleness", lag, "max_staleness")
    draft.fill(_TABLE["rl"])
    prompt, answer = int(draft.number("max_prompt_length", 512)), int(draft.number("max_completion_length", 512))
    draft.join("rollout.maxSampleTokens", prompt + answer, "max_prompt_length", why="a prompt's limit there, both here")
    if not draft.has("max_prompt_length"):
        draft.decide(
            f"rollout.maxSampleTokens: prompts have no limit there; {answer} and {prompt} for the prompt are here"
        )
    _loss(draft, name, loss)
    given = draft.get("reward_funcs", [])
    names = ", ".join(draft.foreign.rewards or (given if isinstance(given, list) else [str(given)])) or "named nowhere"
    why = f"bring the reward functions that the script gives: {names}"
    recipe = _TABLE["recipe"].format(names=" ".join(names.split()))
    draft.put_reward("solution", recipe, why=why, own=names != "accuracy_reward")
    draft.note(["reward_funcs", "reward_weights"], "recipe.file", "recipe.py")
    drawn = str(draft.foreign.values.get("vllm_sampling_params", "")).replace(UNSET, "")
    by_hand = "its temperature, top_p, top_k and stop are fields of rollout.sampling, to be written by hand"
    draft.drop("vllm_sampling_params", by_hand, decide=f"rollout.sampling: {drawn} there")
    model = "reward_model_name_or_path"
    draft.drop(model, "reward.verifier: model loads one", decide=f"reward.model.path: {draft.get(model)} there")
    return steps


def _loss(draft: JobDraft, name: str, loss: str) -> None:
    draft.choose("loss_type", "algorithm.lossAggregation", _TABLE["aggregations"], loss)
    draft.write("algorithm.lossAggregation", _TABLE["aggregations"].get(loss))
    low = draft.number("epsilon", 0.2)
    if name != "CISPO":
        draft.put("epsilon", "algorithm.clipLow", default=0.2)
        draft.put("epsilon_high", "algorithm.clipHigh", default=low)
    elif draft.has("epsilon_high"):
        why = "the cap itself there, its distance from 1 here"
        draft.put("epsilon_high", "algorithm.clipHigh", draft.number("epsilon_high") - 1, why=why)
    draft.drop("epsilon", "CISPO has no lower clip")
    if name != "RLOO":
        scale = str(draft.get("scale_rewards", "group")).lower()
        draft.join(f"{_ADVANCED}.advantageStd", _SCALES.get(scale, "group"), "scale_rewards")
        draft.write(f"{_ADVANCED}.advantageUnbiased", True)
        draft.write(f"{_ADVANCED}.advantageEpsilon", 1e-4)
    draft.write("algorithm.zeroVariance", "keep")
    beta = float(draft.number("beta", 0.05 if name == "RLOO" else 0.0))
    where, kind = ("reward", "k1") if name == "RLOO" else ("loss", "k3")
    draft.join("algorithm.kl", {"coefficient": beta, "as": where, "estimator": kind} if beta else None, "beta")
    masked = "mask" if draft.get("mask_truncated_completions") else "train"
    draft.join("algorithm.truncated", masked, "mask_truncated_completions")
    if draft.get("sync_ref_model"):
        draft.decide("algorithm.kl: the reference follows the policy there; it stays the start model here")
    draft.drop(
        ["sync_ref_model", "ref_model_sync_steps", "ref_model_mixup_alpha"], "the reference stays the start model"
    )
    if draft.get("use_vllm", False) or "Async" in draft.foreign.task:
        _correction(draft)


def _correction(draft: JobDraft) -> None:
    """vLLM's log-probabilities beside the trainer's."""
    level, _, action = str(draft.get("vllm_importance_sampling_mode", "sequence_mask")).partition("_")
    cap = float(draft.number("vllm_importance_sampling_clip_max", draft.number("vllm_importance_sampling_cap", 3.0)))
    keys = draft.below("vllm_importance_sampling")
    if draft.get("vllm_importance_sampling_correction", True) is False:
        draft.join(f"{_ADVANCED}.decoupled", False, *keys)
        return
    if level == "sequence":
        draft.write(f"{_ADVANCED}.weight", "sequenceProduct")
    if action == "truncate":
        draft.join(f"{_ADVANCED}.truncate", {"upper": cap}, *keys)
        return
    whole_sequence = {"level": "sequence", "aggregate": "sum"} if level == "sequence" else {}
    draft.join(f"{_ADVANCED}.rejection", {"metric": "ratio", "upper": cap, **whole_sequence}, *keys)


def _optimizer(draft: JobDraft, kind: str, steps: int | None) -> None:
    draft.put("learning_rate", "optimizer.learningRate", default=_RATES.get(kind, 1e-6))
    betas = [float(draft.number("adam_beta1", 0.9)), float(draft.number("adam_beta2", 0.999))]
    draft.join("optimizer.betas", betas, "adam_beta1", "adam_beta2")
    draft.put("weight_decay", "optimizer.weightDecay", default=0.0)
    draft.put_schedule("lr_scheduler_type", "linear")
    draft.put_warmup(steps, count="warmup_steps", share="warmup_ratio")
    wanted = bool(draft.get("use_peft"))
    if draft.has("lora_r") and not draft.has("use_peft"):
        draft.decide("trainer.lora: adapters are described there, but use_peft doesn't switch them on; none are here")
    draft.put_lora("lora_r", "lora_alpha", "lora_target_modules", usual=(16, 32), wanted=wanted, switch="use_peft")
