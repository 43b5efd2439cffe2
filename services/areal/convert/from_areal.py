"""AReaL's configurations: RL, SFT, reward models, DPO. Names and defaults as in its version 1.0."""

import re
from dataclasses import dataclass, replace
from typing import Any

from areal.convert.draft import Carried, JobDraft, model_source, on_or_off
from areal.errors import ConfigError
from areal.spec.rules_sglang import Effect, kind_of
from areal.yaml_file.table import read_table

# ---- AReaL's strings for backends and GPUs: `sglang.d12p1t1+d4p1t1`, `sglang:d4p1t2`, `fsdp:d4t2c1`. Pure


ENGINES = ("sglang", "vllm")
_TRAINERS = ("fsdp", "megatron", "archon")
_PART = re.compile(r"(?:(?P<backend>[a-z]+)(?:\[(?P<name>[\w-]+)\])?[.:])?(?P<dims>(?:[dtpce]\d+)+|\(.*\))")
_HYBRID = re.compile(r"\(attn:(?P<attn>(?:[dtpce]\d+)+)\|ffn:(?P<ffn>(?:[dtpce]\d+)+)\)")


@dataclass(frozen=True)
class Part:
    """One component: `dims` are d (data), t (tensor), p (pipeline), c (context), e (experts)."""

    backend: str
    dims: dict[str, int]
    colocated: bool = False  # on the GPUs of the part before
    hybrid: bool = False  # attention and experts are split differently

    @property
    def world(self) -> int:
        """Its GPUs."""
        return self.size("d") * self.size("t") * self.size("p") * self.size("c")

    @property
    def serves(self) -> bool:
        """True for a generation engine."""
        return self.backend in ENGINES

    @property
    def beyond(self) -> str:
        """Splits of it that there are none of here, in words."""
        found = [f"{self.size(name)} {what}" for name, what in (("p", "pipeline stages"), ("e", "expert groups"))
                 if self.size(name) > 1]  # fmt: skip
        return " and ".join([*found, *(["attention and experts split apart"] if self.hybrid else [])])

    def size(self, name: str) -> int:
        """A dimension; 1 where the string has none."""
        return self.dims.get(name, 1)


def parse_allocation(text: str) -> list[Part]:
    """The parts of a string, in order. Dimensions without a backend are a trainer's. Raises ConfigError."""
    parts: list[Part] = []
    pieces = re.findall(r"(^|[+|])((?:[^+|(]|\([^)]*\))+)", text.replace(" ", ""))
    if "".join(joint + piece for joint, piece in pieces) != text.replace(" ", "") or not pieces:
        raise _wrong(text, text)
    for joint, piece in pieces:
        found = _PART.fullmatch(piece)
        backend = (found["backend"] or "fsdp") if found else ""
        hybrid = _HYBRID.fullmatch(found["dims"]) if found else None
        if found is None or backend not in (*ENGINES, *_TRAINERS) or (found["dims"].startswith("(") and not hybrid):
            raise _wrong(text, piece)
        dims = _dims(hybrid["attn"] if hybrid else found["dims"], text)
        experts = _dims(hybrid["ffn"], text) if hybrid else {}
        parts.append(Part(backend, {**experts, **dims}, joint == "|", hybrid is not None))
    return parts


def _dims(text: str, whole: str) -> dict[str, int]:
    found = re.findall(r"([dtpce])(\d+)", text)
    if len({name for name, _ in found}) < len(found) or any(int(size) < 1 for _, size in found):
        raise _wrong(whole, text)
    return {name: int(size) for name, size in found}


def _wrong(text: str, piece: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is no allocation: {piece!r} is not understood",
        fix="Write backend:dN…, each of d, t, p, c, e once, such as sglang:d4t2 or sglang.d12p1t1+d4p1t1.",
    )


# ---- AReaL's configurations: RL, SFT, reward models, DPO. Names and defaults as in its version 1.0


_TRAININGS = {"sft": "SFT", "dpo": "DPO", "rw": "RewardModel"}
_NAMES = {"actor.use_sapo_loss": "SAPO", "actor.use_cispo_loss": "CISPO", "actor.m2_threshold": "M2PO"}
_OLDEST = 1000  # versions: the limit of maxStaleness
_BOUND = 4  # times the lead: as fast as no bound, with nothing thrown away
_ADVANCED = "algorithm.advanced"
_TABLE = read_table("areal.convert", "fields.yaml")["areal"]
_OFF = "off or null: SGLang's own default"
_CARRIED: dict[str, Carried] = {
    **_TABLE["carried"],
    "gconfig.top_k": ("rollout.sampling.topK", lambda k: 0 if k >= 1e8 or k < 0 else int(k)),
    "actor.dtype": ("trainer.precision", lambda kind: "float32" if kind == "float32" else "bfloat16"),
    "actor.gradient_checkpointing": ("trainer.recompute", on_or_off("full", "none")),
}


def translate(draft: JobDraft) -> None:
    """The whole file."""
    kind = str(draft.get("train_dataset.type", "rl" if draft.has("gconfig.n_samples") else "sft"))
    draft.name_job("experiment_name", "trial_name", default=draft.foreign.file.stem)
    draft.put_model("actor.path", tokenizer="tokenizer_path")
    draft.put_rows("train_dataset.path", "train", split=str(draft.get("train_dataset.split", "")))
    draft.note(["train_dataset.split", "train_dataset.type"], "dataset.train")
    batch = draft.number("train_dataset.batch_size", 1)
    steps = _fixed_rows(draft, _TRAININGS[kind], batch) if kind in _TRAININGS else _rl(draft, batch)
    _optimizer(draft, steps)
    _intervals(draft, batch)
    _machines(draft)
    draft.apply(_CARRIED, "areal", ("",))
    _engine_arguments(draft)


def _fixed_rows(draft: JobDraft, name: str, batch: int) -> int | None:
    draft.write("training.name", name)
    draft.put("train_dataset.batch_size", "training.batchSize", default=batch)
    draft.put("train_dataset.max_length", "training.maxTokens", why="longer rows are left out there, cut here")
    draft.fill(_TABLE["fixed_rows"])
    return draft.put_steps("training", batch, epochs="total_train_epochs", usual=1, total="total_train_steps")


def _rl(draft: JobDraft, batch: int) -> int | None:
    has_critic = draft.has("critic.path") or draft.has("critic.backend")
    losses = [name for key, name in _NAMES.items() if draft.get(key)]
    name = "GSPO" if draft.get("actor.importance_sampling_level") == "sequence" else "GRPO"
    name = "RLOO" if draft.get("actor.reward_norm.mean_leave1out") else name
    name = "PPO" if has_critic else (losses or [name])[0]
    draft.join("algorithm.name", name, "actor.use_sapo_loss", "actor.use_cispo_loss")
    draft.put("train_dataset.batch_size", "algorithm.batchSize", default=batch)
    if (taken := draft.number("rollout.consumer_batch_size", batch)) != batch:
        draft.decide(
            f"algorithm.batchSize: rollout.consumer_batch_size is {taken} there, train_dataset.batch_size {batch}"
        )
    draft.note("rollout.consumer_batch_size", "algorithm.batchSize", batch)
    draft.write("rollout.maxConcurrentRollouts", batch)
    draft.fill(_TABLE["rl"])
    lag = draft.number("rollout.max_head_offpolicyness", 0)
    lead = min(lag, _OLDEST // _BOUND)
    why = f"there tokens about {_BOUND} times as old are trained; here maxStaleness {_BOUND * lead} is a hard bound"
    draft.put("rollout.max_head_offpolicyness", "rollout.ahead", lead, default=0, why=why if lead else "")
    draft.write("algorithm.maxStaleness", _BOUND * lead)
    steps = draft.put_steps("algorithm", batch, epochs="total_train_epochs", usual=1, total="total_train_steps")
    _lengths(draft)
    _rewards(draft)
    _baseline(draft)
    _ratios(draft, name)
    _divergence(draft)
    _other_models(draft, name)
    why = "name the file and the function that the training script there gives"
    draft.put_reward("answer", _TABLE["recipe"], why=why)
    return steps


def _lengths(draft: JobDraft) -> None:
    answer, to = draft.number("gconfig.max_new_tokens", 16384), "rollout.maxSampleTokens"
    draft.put("gconfig.max_new_tokens", "rollout.sampling.maxNewTokens", default=answer)
    draft.note("actor.max_new_tokens", "rollout.sampling.maxNewTokens", answer)
    longest, prompt = draft.get("gconfig.max_tokens"), draft.get("train_dataset.max_length")
    if longest is None and prompt is None:
        draft.decide(f"{to}: prompts have no limit there; {answer} and 1024 for the prompt are here")
    draft.write(to, longest or (prompt or 1024) + answer)
    draft.note("gconfig.max_tokens", to, longest)
    if prompt is not None:
        draft.write("dataset.longPrompts", "drop")
        draft.note("train_dataset.max_length", to, longest or prompt + answer, "a prompt's limit there, both here")
    if draft.number("gconfig.min_new_tokens", 0):
        draft.put("gconfig.min_new_tokens", "rollout.sampling.minNewTokens")
    draft.note("gconfig.min_new_tokens", "rollout.sampling.minNewTokens", "none")
    if draft.get("gconfig.greedy"):
        draft.drop(
            "gconfig.greedy",
            "a greedy group has nothing to compare",
            decide="rollout.sampling.temperature: greedy there, 1 here",
        )
    draft.note(["gconfig.greedy", "actor.temperature"], "rollout.sampling.temperature")
    if draft.number("actor.temperature", 1.0) != draft.number("gconfig.temperature", 1.0):
        draft.decide("rollout.sampling.temperature: actor.temperature is another one there")


def _rewards(draft: JobDraft) -> None:
    overlong = ["actor.overlong_tokens", "actor.overlong_penalty_factor"]
    if draft.get("actor.overlong_reward_penalty"):
        draft.put(overlong[0], "algorithm.overlong.window", default=4096)
        draft.put(overlong[1], "algorithm.overlong.factor", default=1.0)
    draft.note("actor.overlong_reward_penalty", "algorithm.overlong")
    draft.drop(overlong, "the penalty is off there")
    if draft.get("actor.mask_no_eos_with_zero"):
        draft.write("algorithm.truncated", "neutral")
    draft.note("actor.mask_no_eos_with_zero", "algorithm.truncated", draft.spec["algorithm"].get("truncated", "train"))


def _levels(draft: JobDraft, block: str) -> tuple[str, str]:
    """The levels of mean and deviation; `batch` where the block says nothing, none where there is no block."""
    given = draft.foreign.values
    if not draft.below(f"{block}."):  # a switch, in earlier versions
        return ("batch", "batch") if given.get(block) is True else ("none", "none")
    mean, std = (str(given.get(f"{block}.{key}", "batch") or "none") for key in ("mean_level", "std_level"))
    return mean, std


def _baseline(draft: JobDraft) -> None:
    block, samples = "actor.reward_norm", draft.number("gconfig.n_samples", 1)
    mean, std = ("group", "group") if draft.get("actor.group_reward_norm") else _levels(draft, block)
    why, size = "", draft.number(f"{block}.group_size", samples if draft.get("actor.group_reward_norm") else 1)
    if "group" in (mean, std) and size != samples:
        why = f"group_size {size} there, of groups of {samples}"
        draft.decide(f"{_ADVANCED}.advantageMean: {block}.group_size is {size} there, and gconfig.n_samples {samples}")
    keys = [f"{block}.mean_level", f"{block}.group_size", "actor.group_reward_norm"]
    draft.join(f"{_ADVANCED}.advantageMean", mean, *keys, why=why)
    draft.join(f"{_ADVANCED}.advantageStd", std, f"{block}.std_level", why=why)
    if std != "none":
        draft.put(f"{block}.std_unbiased", f"{_ADVANCED}.advantageUnbiased", default=True)
        draft.put(f"{block}.eps", f"{_ADVANCED}.advantageEpsilon", default=1e-5)
    if draft.get("dynamic_bs"):
        why = "a batch of accepted groups there; groups of equal rewards are masked here"
        draft.join("algorithm.zeroVariance", "mask", "dynamic_bs", why=why)
    elif mean == "group" or draft.get("actor.dynamic_sampling"):
        kept = "filter" if draft.get("actor.dynamic_sampling") else "keep"
        draft.join("algorithm.zeroVariance", kept, "dynamic_bs", "actor.dynamic_sampling")
    draft.drop(["dynamic_bs", "actor.dynamic_sampling"], "off there, or without groups to compare")
    level, other = _levels(draft, "actor.adv_norm")
    if level != other:
        draft.decide(f"{_ADVANCED}.advantageNormalize: mean by {level} and deviation by {other} there")
    keys = [*draft.below("actor.adv_norm.", "actor.adv_norm"), *draft.below(f"{block}."), block]
    draft.join(f"{_ADVANCED}.advantageNormalize", level if level == other else "none", *keys)


def _ratios(draft: JobDraft, name: str) -> None:
    if draft.number("actor.eps_clip", 0.2) > 0:
        draft.put("actor.eps_clip", "algorithm.clipLow", default=0.2)
    draft.note("actor.eps_clip", f"{_ADVANCED}.surrogate", "none")
    taus = ["actor.sapo_tau_pos", "actor.sapo_tau_neg"]
    if name == "SAPO":
        draft.put(taus[0], f"{_ADVANCED}.tauPositive")
        draft.put(taus[1], f"{_ADVANCED}.tauNegative")
    draft.drop(taus, "use_sapo_loss is off there")
    draft.write("algorithm.lossAggregation", "token")
    decoupled, again = draft.get("actor.use_decoupled_loss", False), draft.get("actor.recompute_logprob", False)
    why = (
        "π_prox is recomputed there without the weight π_prox/π_behav, which is here" if again and not decoupled else ""
    )
    draft.join(f"{_ADVANCED}.decoupled", bool(decoupled or again), "actor.use_decoupled_loss", why=why)
    method = "loglinear" if draft.get("actor.prox_logp_method") == "loglinear" and decoupled else "auto"
    draft.join(f"{_ADVANCED}.proximal", method, "actor.recompute_logprob", "actor.prox_logp_method")
    _rejection(draft)


def _rejection(draft: JobDraft) -> None:
    block, to = "actor.rejection_sampling", f"{_ADVANCED}.rejection"
    keys = draft.below(f"{block}.")
    old = next((key for key in draft.below("actor.behav") if key.endswith("_cap")), "")  # of earlier versions
    if not keys and draft.has(old):
        draft.join(to, {"metric": "ratio", "upper": float(draft.number(old))}, old, why="an old name there")
    draft.drop(draft.below("actor.behav"), "rejection_sampling decides")
    if not keys and not draft.has(old):
        draft.spec["algorithm"]["advanced"]["rejection"] = None
        draft.note(block, to, "none")
    if not keys:
        return
    bounds = {name: float(value) for name, usual in (("upper", 5.0), ("lower", None))
              if (value := draft.get(f"{block}.{name}", usual)) is not None}  # fmt: skip
    if draft.get(f"{block}.action") == "clamp":
        draft.spec["algorithm"]["advanced"]["rejection"] = None
        draft.join(f"{_ADVANCED}.truncate", bounds, *keys)
        return
    made: dict[str, Any] = {"metric": str(draft.get(f"{block}.metric", "ratio")), **bounds}
    if draft.get(f"{block}.level") == "sequence":
        made |= {"level": "sequence", "aggregate": str(draft.get(f"{block}.agg", "mean"))}
    draft.join(to, made, *keys)


def _divergence(draft: JobDraft) -> None:
    weight, keys = float(draft.number("actor.kl_ctl", 0.1)), ["actor.kl_ctl", "actor.kl_estimator"]
    if weight and draft.below("ref."):
        kl = {"coefficient": weight, "as": "reward", "estimator": str(draft.get(keys[1], "k1"))}
        draft.join("algorithm.kl", kl, *keys)
        draft.start_model_only("ref.path", "actor.path", "algorithm.kl")
    draft.note(keys, "algorithm.kl", "none", "no ref there, so no divergence" if weight else "")


def _other_models(draft: JobDraft, name: str) -> None:
    if name == "PPO":
        draft.fill(_TABLE["critic"])
        draft.write("algorithm.critic.bootstrap", False)
        draft.start_model_only("critic.path", "actor.path", "algorithm.critic")
    if draft.has("teacher.path"):
        draft.put("teacher.path", "algorithm.teacher.path", model_source(str(draft.get("teacher.path")))[1])
        why = "a weight of the loss there, of the advantage here"
        draft.put("teacher.distill_loss_weight", "algorithm.teacher.coefficient", default=0.005, why=why)
        draft.put("teacher.rl_loss_weight", "algorithm.rewardScale", why="the rewards' share there")


def _optimizer(draft: JobDraft, steps: int | None) -> None:
    block = "actor.optimizer"
    draft.fill(_TABLE["optimizer"])
    betas = [float(draft.number(f"{block}.beta1", 0.9)), float(draft.number(f"{block}.beta2", 0.999))]
    draft.join("optimizer.betas", betas, f"{block}.beta1", f"{block}.beta2")
    draft.put_schedule(f"{block}.lr_scheduler_type", "constant")
    draft.put_warmup(steps, share=f"{block}.warmup_steps_proportion", usual=0.001)
    if not draft.has(f"{block}.lr"):
        draft.decide("optimizer.learningRate: the file names none")
    keys = ("actor.lora_rank", "actor.lora_alpha", "actor.target_modules")
    draft.put_lora(*keys, usual=(32, 16), wanted=bool(draft.get("actor.use_lora")), switch="actor.use_lora")


def _intervals(draft: JobDraft, batch: int) -> None:
    """Saving and measuring: epochs in steps."""
    if is_measured := draft.has("valid_dataset.path"):
        draft.put_rows("valid_dataset.path", "evaluation", split=str(draft.get("valid_dataset.split", "")))
        draft.note(["valid_dataset.split", "valid_dataset.type"], "dataset.evaluation")
    is_kept = str(draft.get("recover.mode", "disabled")) != "disabled"
    draft.note("recover.mode", "checkpoint", "always")
    for block, to, wanted in (
        ("saver", "export", True),
        ("recover", "checkpoint", is_kept),
        ("evaluator", "evaluation", is_measured),
    ):
        steps, epochs = f"{block}.freq_steps", f"{block}.freq_epochs"
        if not wanted:
            draft.drop(
                [steps, epochs],
                "off there; checkpoints are always made here" if block == "recover" else "no held-out rows",
            )
        elif draft.has(steps):
            draft.put(steps, f"{to}.intervalSteps")
        elif draft.has(epochs) and draft.rows:
            made = max(1, draft.number(epochs) * (draft.rows // batch))
            draft.put(epochs, f"{to}.intervalSteps", made, why="epochs there, steps here")
        elif draft.has(epochs):
            draft.drop(epochs, f"{to}.intervalSteps is in steps, and how many rows there are isn't known (--rows N)")


def _machines(draft: JobDraft) -> None:
    """Backends and their GPUs, by a string each, or one for all."""
    keys = [key for key in ("rollout.backend", "actor.backend", "allocation_mode") if draft.get(key)]
    parts = [(key, part) for key in keys for part in parse_allocation(str(draft.get(key)))]
    per_node = draft.number("cluster.n_gpus_per_node", 8)
    serving = next(((key, part) for key, part in parts if part.serves), None)
    if serving and per_node:
        _serve(draft, *serving)
    elif serving:
        draft.note(serving[0], "generation.engine", "embedded", "no GPUs there: the engine for CPUs is here")
    elif "algorithm" in draft.spec:
        draft.decide("generation: the file doesn't say where answers are generated")
    key, training = next(((key, part) for key, part in parts if not part.serves), ("", None))
    if training is None:
        draft.decide("trainer.gpus: the file doesn't say how many GPUs train")
    elif per_node:
        beyond = training.beyond
        draft.put_gpus(training.world, per_node, *(1, 1) if beyond else (training.size("t"), training.size("c")))
        why = f"{beyond} there: as many GPUs, sharded by FSDP2 here" if beyond else ""
        draft.note(key, "trainer", draft.spec["trainer"], why)
    elif training.world > 1:
        draft.write("trainer.procPerNode", training.world)
    if (
        any(part.colocated for _, part in parts)
        and "algorithm" in draft.spec
        and not (per_node and serving and draft.share(per_node))
    ):
        draft.decide("trainer.gpus: parts share GPUs there; on several machines each has GPUs of its own here")
    draft.note(keys, "generation and trainer")


def _serve(draft: JobDraft, key: str, part: Part) -> None:
    draft.put_engine(part.size("d"), part.size("t") * part.size("p"))
    why = "pipeline stages there, split layers here" if part.size("p") > 1 else ""
    if part.backend == "vllm":
        why = "vLLM there, SGLang here"
        draft.put("vllm.gpu_memory_utilization", "generation.engine.memFraction", why=why)
        draft.put("vllm.max_model_len", "generation.engine.contextLength", why=why)
        draft.drop(draft.below("sglang."), "the engine there is vLLM")
    draft.note(key, "generation", dict(draft.spec["generation"]), why)


def _engine_arguments(draft: JobDraft) -> None:
    """Extra arguments: what is left of SGLang's own."""
    engine = draft.spec.get("generation", {}).get("engine", {})
    if engine.get("type") != "sglang":
        draft.spec.pop("generation", None)
        return
    arguments: list[str] = []
    for entry in [entry for entry in draft.dropped if entry.why == _OFF and entry.was not in (False, [], "")]:
        flag = f"--{entry.key.removeprefix('sglang.').replace('_', '-')}"
        if (kind := kind_of(flag)) is None or kind.effect is Effect.REFUSED:
            why = kind.reason if kind else "no flag that a job gives SGLang"
            draft.dropped[draft.dropped.index(entry)] = replace(entry, why=why)
            continue
        arguments += [flag] if entry.was is True else [flag, str(entry.was)]
        draft.dropped.remove(entry)
        draft.carried.append(replace(entry, to="generation.engine.extraArgs", value=flag, why=""))
    draft.write("generation.engine.extraArgs", arguments or None)
    rollout = draft.spec["rollout"]
    rollout["maxSampleTokens"] = min(
        rollout["maxSampleTokens"], engine.get("contextLength", rollout["maxSampleTokens"])
    )
