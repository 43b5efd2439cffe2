"""Lock-step asynchronous RL: one deterministic process in which every trained token has exactly the age that was asked.

Owns one run: step v trains answers that the weights of version max(0, v − η) sampled. The trainer is the product's own,
built from a job as the trainer role builds it; so are the sampler's forward pass and choice of tokens, and the reward
is the job's recipe. Only what lies between them (servers, ledger, publication) is left out, and with it all timing.

A batch is sampled as soon as its weights exist and waits until its step, so no old weights are kept. Its behaviour
log-probabilities are the trainer's of those same weights: the difference between two kernels, about 1e-6, is then no
part of what is compared, and at η = 0 the naive and the decoupled loss are one program.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from areal.engine.cache import KVCache
from areal.engine.model import DecoderModel
from areal.engine.model_config import ModelConfig
from areal.engine.sampling import Choice, choose
from areal.spec.job import JobSpec
from areal.spec.load import job_from
from areal.spec.resolved_algorithm import resolve
from areal.workflow.recipe import load_recipe
from areal.workflow.tokenizer import Tokenizer
from areal.yaml_file.document import read_document
from areal_trainer.actor import Actor
from areal_trainer.algorithms.advantages import Advantages, estimate_advantages
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.data.batch import NO_VERSION, TokenBatch
from areal_trainer.engine.engine import PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.settings import TrainerPaths, TrainerSettings
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
_PATHS = 16  # that a trainer has without a teacher; none is used here


@dataclass(frozen=True)
class Setting:
    """One run: what varies, and what is the same for all runs of a table."""

    eta: int | None  # age of every trained token, from step η on; None: all are of version 0
    loss: str  # a name for people; what it means is in `overrides`
    seed: int
    overrides: tuple[str, ...] = ()  # of the job
    steps: int = 48
    evaluate_every: int = 8
    probe_every: int = 6  # steps between two measurements of how far the policy moved
    held_out: int = 500  # rows
    job: Path = ROOT / "examples" / "quickstart.yaml"
    model: Path = ROOT / "runs" / "digits-sft" / "model"
    data: Path = ROOT / "data" / "digits"
    recipe: Path = ROOT / "examples" / "digits.py"

    @property
    def name(self) -> str:
        return f"eta-{'unbounded' if self.eta is None else self.eta}_{self.loss}_seed-{self.seed}"

    def version_for(self, step: int) -> int:
        """The version whose answers this step trains."""
        return 0 if self.eta is None else max(0, step - self.eta)

    def spec(self) -> JobSpec:
        """The job with this run's values."""
        own = (*self.overrides, f"seed={self.seed}", f"algorithm.maxSteps={self.steps}", "research.allowStale=true")
        spec = job_from(read_document(self.job), own).spec
        assert isinstance(spec, JobSpec)
        return spec


@dataclass(frozen=True)
class Batch:
    """As `Actor.update` takes it."""

    tokens: TokenBatch
    step: int
    max_steps: int
    version: int  # that sampled it
    reward: float
    mismatch: float  # largest difference of the sampler's log-probabilities from the trainer's
    micro_batch_divisor: int = 1


class Sampler:
    """Answers of the newest weights, by the embedded engine's forward pass."""

    def __init__(self, model: Path, tokenizer: Tokenizer, max_new: int) -> None:
        self._path, self._max_new = model, max_new
        self._ends = np.array(sorted(tokenizer.eos_ids))
        self._model = DecoderModel(ModelConfig.from_dir(model), torch.float32, 64)

    def load(self, engine: PolicyEngine) -> None:
        """Take the trainer's weights, as they would be published."""
        self._weights = self._model.build(self._path, dict(engine.export()))

    @torch.inference_mode()
    def answers(
        self, prompts: Sequence[NDArray[np.int64]], seeds: NDArray[np.uint64], temperature: float
    ) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float32]]]:
        """Tokens and log-probabilities of as many answers to each prompt as there are seeds for it."""
        count, size = len(seeds), len(seeds) // len(prompts)
        lengths = np.repeat([len(one) for one in prompts], size)
        longest = int(lengths.max())
        padded = np.zeros((len(prompts), longest), np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        cache, rows = KVCache(self._model.config, torch.float32), torch.arange(count)
        cache.reserve(count, KVCache.capacity_for(longest + self._max_new), 0)
        self._model.prefill(self._weights, cache, torch.from_numpy(padded), rows[::size], hidden=False)
        cache.copy_rows(rows // size * size, rows, longest)
        padded = np.repeat(padded, size, axis=0)
        made = np.zeros((count, self._max_new), np.int64)
        logprobs = np.zeros((count, self._max_new), np.float32)
        ends = np.full(count, self._max_new)
        last, greedy = padded[np.arange(count), lengths - 1], np.full(count, temperature, np.float32)
        off, ones, zeros = np.full(count, -1), np.ones(count, np.float32), np.zeros(count, np.float32)
        for place in range(self._max_new):
            at = lengths - 1 + place
            logits = self._model.decode(self._weights, cache, torch.from_numpy(last), torch.from_numpy(at))
            last, logprobs[:, place] = choose(logits, Choice(seeds, at + 1, greedy, off, ones, zeros))
            made[:, place] = last
            ends = np.where(np.isin(last, self._ends) & (ends == self._max_new), place + 1, ends)
            if (ends <= place + 1).all():
                break
        return [made[row, :end] for row, end in enumerate(ends)], [logprobs[row, :end] for row, end in enumerate(ends)]


class LockStep:
    """One run. `play` is the whole of it."""

    def __init__(self, setting: Setting, home: Path) -> None:
        self.setting = setting
        self._spec = spec = setting.spec()
        settings = TrainerSettings("eta", "eta", spec, TrainerPaths(*[home] * _PATHS), "", "", None, "")
        self._ranks = RankGroup()
        self._engine = PolicyEngine(setting.model, settings.engine, self._ranks)
        self._actor = Actor(self._engine, settings.actor, Checkpointer(home / "checkpoints", 1, self._engine))
        self._tokenizer = Tokenizer.from_dir(setting.model)
        self._reward = load_recipe(setting.recipe).reward
        self._sampler = Sampler(setting.model, self._tokenizer, spec.rollout.sampling.max_new_tokens)
        rows = _rows(setting.data / "train.jsonl")
        order = np.random.default_rng(setting.seed).permutation(len(rows))
        self._rows = [rows[place] for place in order]
        self._held_out = _rows(setting.data / "heldout.jsonl")[: setting.held_out]
        self._waiting: deque[Batch] = deque()

    def play(self) -> dict[str, Any]:
        """Train to the last step; what was seen."""
        setting, began = self.setting, time.perf_counter()
        held_out, ages, steps, moved = [], [], [], []
        for step in range(setting.steps):
            self._sampler.load(self._engine)
            if step % setting.evaluate_every == 0:
                held_out.append(self._evaluated(step))
            self._sample_due(step)
            batch = self._waiting.popleft()
            assert batch.step == step
            assert batch.version == setting.version_for(step)
            made = batch.tokens.versions[batch.tokens.trainable()]
            ages.append((float((step - made).mean()), int((step - made).max())))
            before = self._scores(batch) if step % setting.probe_every == 0 else None
            advantages = self._actor.advantages(batch.tokens)
            figures = self._actor.update(batch, advantages)
            loss = figures.loss
            if not figures.finite or not loss.tokens:
                raise RuntimeError(f"step {step} had an update that was not finite, or nothing to learn from")
            steps.append(
                {"reward": batch.reward, "clip": loss.clip_ratio, "rejected": loss.rejected_ratio,
                 "weight_max": loss.behaviour_weight_max, "entropy": loss.entropy, "grad_norm": figures.grad_norm,
                 "mismatch": batch.mismatch}
            )  # fmt: skip
            if before is not None:
                moved.append(self._moved(batch, advantages, before))
        self._sampler.load(self._engine)
        held_out.append(self._evaluated(setting.steps))
        self._ranks.close()
        return {
            "name": setting.name, "eta": setting.eta, "loss": setting.loss, "seed": setting.seed,
            "held_out": held_out, "last": held_out[-1][1], "area": area(held_out),
            "age_mean": fmean(mean for mean, _ in ages), "age_max": max(most for _, most in ages), "ages": ages,
            "mismatch_max": max(one["mismatch"] for one in steps), "steps": steps, "moved": moved,
            "seconds": time.perf_counter() - began,
        }  # fmt: skip

    def _sample_due(self, version: int) -> None:
        """Sample what this version is to sample; it is the newest."""
        have = self._waiting[-1].step + 1 if self._waiting else version
        for step in range(have, self.setting.steps):
            if self.setting.version_for(step) != version:
                return
            self._waiting.append(self._sampled(step, version))

    def _sampled(self, step: int, version: int) -> Batch:
        """The batch of a step by the newest weights: the same questions and random numbers whatever η and loss are."""
        algorithm, size = self._spec.algorithm, self._spec.algorithm.group_size
        first = step * algorithm.batch_size
        rows = [self._rows[(first + place) % len(self._rows)] for place in range(algorithm.batch_size)]
        asked = [self._tokenizer.encode(row["prompt"]) for row in rows]
        seeds = np.random.default_rng((self.setting.seed, step)).integers(0, 1 << 63, len(rows) * size, np.uint64)
        answers, logprobs = self._sampler.answers(asked, seeds, self._spec.rollout.sampling.temperature)
        prompts = [prompt for prompt in asked for _ in range(size)]
        rewards = self._scored([row for row in rows for _ in range(size)], prompts, answers)
        tokens = batch_of(prompts, answers, logprobs, rewards, version, size, self._spec)
        trained = self._trained_of(tokens)
        told = self._actor.logprobs(tokens, trained).numpy()
        known = tokens.trainable() & trained[tokens.sequence_of]
        mismatch = np.abs(told - tokens.behaviour_logprobs)[known].max(initial=0.0)
        tokens = replace(tokens, behaviour_logprobs=np.where(known, told, tokens.behaviour_logprobs))
        return Batch(tokens, step, self.setting.steps, version, float(rewards.mean()), float(mismatch))

    def _trained_of(self, tokens: TokenBatch) -> NDArray[np.bool_]:
        """[sequences]: those with a signal, which the trainer's own pass before the update is for, too."""
        return estimate_advantages(tokens, self._actor.options.advantages).trained

    def _moved(self, batch: Batch, advantages: Advantages, before: NDArray[np.float64]) -> dict[str, float]:
        """What `movement` says of this update; `before` are the log-probabilities that it began with."""
        tokens = batch.tokens
        trained = tokens.trainable() & advantages.trained[tokens.sequence_of]
        columns = (tokens.behaviour_logprobs.astype(np.float64), before, self._scores(batch), advantages.tokens)
        return movement(*(column[trained] for column in columns), clip=resolve(self._spec).clip_low)

    def _scores(self, batch: Batch) -> NDArray[np.float64]:
        found = self._actor.logprobs(batch.tokens, self._trained_of(batch.tokens))
        return found.numpy().astype(np.float64)

    def _evaluated(self, version: int) -> tuple[int, float]:
        """The newest weights' greedy accuracy on the held-out rows."""
        prompts = [self._tokenizer.encode(row["prompt"]) for row in self._held_out]
        answers, _ = self._sampler.answers(prompts, np.zeros(len(prompts), np.uint64), 0.0)
        return version, float(self._scored(self._held_out, prompts, answers).mean())

    def _scored(
        self, rows: Sequence[dict[str, Any]], prompts: Sequence[NDArray[Any]], answers: Sequence[NDArray[np.int64]]
    ) -> NDArray[np.float64]:
        assert self._reward is not None
        told = []
        for row, prompt, answer in zip(rows, prompts, answers, strict=True):
            others = {name: value for name, value in row.items() if name != "prompt"}
            told.append(self._reward(row["prompt"], self._tokenizer.decode(answer), prompt, answer, **others))
        return np.array(told, np.float64)


def batch_of(
    prompts: Sequence[NDArray[Any]], answers: Sequence[NDArray[np.int64]], logprobs: Sequence[NDArray[np.float32]],
    rewards: NDArray[np.float64], version: int, size: int, spec: JobSpec,
) -> TokenBatch:  # fmt: skip
    """The columns of these answers, as the trainer gets them from the ledger."""
    lengths = [len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)]
    mask = np.concatenate([np.arange(n) >= len(prompt) for n, prompt in zip(lengths, prompts, strict=True)])
    behaviour = np.zeros(len(mask), np.float32)
    behaviour[mask] = np.concatenate(logprobs)
    longest = spec.rollout.sampling.max_new_tokens
    return TokenBatch(
        token_ids=np.concatenate([one for pair in zip(prompts, answers, strict=True) for one in pair]).astype(np.int64),
        behaviour_logprobs=behaviour,
        loss_mask=mask,
        versions=np.where(mask, version, NO_VERSION),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        group_ids=np.repeat(np.arange(len(prompts) // size), size),
        sample_indices=np.tile(np.arange(size), len(prompts) // size),
        rewards=rewards,
        truncated=np.array([len(answer) == longest for answer in answers]),
    )


def area(curve: Sequence[tuple[int, float]]) -> float:
    """The mean height of a curve over its versions, by trapezoids."""
    x, y = (np.array(column, float) for column in zip(*curve, strict=True))
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def play(setting: Setting) -> dict[str, Any]:
    """One run, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(setting.seed)
    with tempfile.TemporaryDirectory() as home:
        return {**LockStep(setting, Path(home)).play(), "setting": told(setting)}


def told(setting: Setting) -> dict[str, Any]:
    """The setting as JSON has it, without where files lie."""
    return {name: value for name, value in asdict(setting).items() if not isinstance(value, Path)}


def movement(
    behaviour: NDArray[np.float64], before: NDArray[np.float64], after: NDArray[np.float64],
    advantages: NDArray[np.float64], clip: float,
) -> dict[str, float]:  # fmt: skip
    """How far apart the policies are on a batch's trained tokens, [tokens] each, and what the age costs its gradient.

    lag, step, total: mean |Δ log π| from behaviour to proximal policy, from there to the new weights, and of both; with
        _kl the KL divergence of the same two by k3, in nats a token
    cut: share of the gradient that a clip around the behaviour policy takes away before the first update; a token's is
        |A|·(1 − π_prox)·π_prox/π_behav, that of its own logit
    effective: effective share of the tokens under the weights π_prox/π_behav, (Σw)²/(n·Σw²)
    """
    found: dict[str, float] = {}
    drift = before - behaviour
    for name, distance in (("lag", drift), ("step", after - before), ("total", after - behaviour)):
        found[name] = float(np.abs(distance).mean())
        found[f"{name}_kl"] = float((np.expm1(distance) - distance).mean())
    weight = np.exp(drift)
    size = np.abs(advantages) * weight * -np.expm1(before)
    beyond = np.where(advantages > 0, weight > 1 + clip, weight < 1 - clip)
    found["cut"] = float(size[beyond].sum() / size.sum())
    found["effective"] = float(weight.sum() ** 2 / (len(weight) * (weight**2).sum()))
    return found


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
