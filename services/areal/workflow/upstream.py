"""Adapter for code written for AReaL: its reward functions and `RolloutWorkflow` subclasses run unchanged.

A recipe names them by file, and they are loaded at their first use, so that a recipe never imports torch:

    class Mine(UpstreamWorkflow):
        source = "workflow.py:MyWorkflow"
        arguments = {"reward_fn": "rewards.py:reward_fn"}

    reward = upstream_reward("rewards.py:reward_fn")

Owns the modules that such code imports (`areal.api.*`, `areal.utils.*` and their kin are not of this project) and the
way from its tensors to an `Episode`: what its loss mask trains must be what this episode's engine sampled.
"""

import asyncio
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from areal.errors import DataError
from areal.values.generation import GenerationRequest, GenerationResult, Ids, as_ids
from areal.workflow.base import Engine, RolloutWorkflow
from areal.workflow.episode import Episode, Sequence
from areal.workflow.recipe import REWARD_ARGUMENTS
from areal.workflow.tokenizer import Tokenizer

_BLOCKS = ("areal.api", "areal.utils", "areal.infra", "areal.experimental", "areal.workflow_context")
_ALL = 10**8  # their top_k that keeps every token
_DRAWN = ("max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "ignore_eos", "stop", "stop_token_ids")
_REWARD_S = 15.0  # their longest time for one score


def upstream_reward(target: str) -> Callable[..., float]:
    """A recipe's `reward` that calls the function `file.py:name`, loaded at its first call.

    `prompt` and `completions` are as this project's workflows give them: without special tokens.
    """
    place = Path(sys._getframe(1).f_globals.get("__file__", "")).parent
    found: list[Callable[..., Any]] = []

    def reward(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, **row: Any) -> float:
        if not found:
            found.append(_load(target, place))
        return float(found[0](prompt, completions, prompt_ids, completion_ids, **row))

    return reward


class UpstreamWorkflow(RolloutWorkflow):
    """A workflow of theirs. `source` is `file.py:Class`; `arguments` are its constructor's.

    An argument `file.py:name` is what that file has by the name. `gconfig` and `tokenizer` are given where it takes
    them: the job's sampling, and the model's tokenizer.
    """

    source: ClassVar[str] = ""
    arguments: ClassVar[Mapping[str, Any]] = {}

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One sample of theirs. Raises DataError for tokens that this episode's engine did not sample."""
        theirs, usual = self._theirs(engine)
        recorded = RecordingEngine(engine, usual)
        made = await theirs.arun_episode(recorded, _with_messages(row))
        return None if made is None else recorded.episode(made)

    def _theirs(self, engine: Engine) -> "tuple[Any, UpstreamSampling]":
        """Their instance, one for all episodes, made at the first; and the sampling that it was given."""
        if "_made" not in vars(self):
            place = Path(str(getattr(sys.modules.get(type(self).__module__), "__file__", "."))).parent
            kind = _load(self.source, place)
            if not isinstance(kind, type) or not issubclass(kind, UpstreamBase):
                raise DataError(
                    f"{self.source} is no RolloutWorkflow of areal.api", fix="name such a class in `source`"
                )
            given = {
                name: _load(value, place) if isinstance(value, str) and ".py:" in value else value
                for name, value in self.arguments.items()
            }
            takes = inspect.signature(kind).parameters
            sampling = UpstreamSampling.of(engine)
            usual = {"gconfig": sampling, "tokenizer": UpstreamTokenizer(engine.tokenizer)}
            self._made = kind(**{name: value for name, value in usual.items() if name in takes} | given), sampling
        return self._made


class UpstreamBase:
    """Their `RolloutWorkflow`: `async def arun_episode(self, engine, data)` answers tensors of one sample, or None."""


@dataclass
class UpstreamSampling:
    """Their `GenerationHyperparameters`."""

    n_samples: int = 1
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    max_tokens: int | None = None
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = _ALL
    temperature: float = 1.0
    stop_token_ids: list[int] = field(default_factory=list)
    stop: list[str] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    @classmethod
    def of(cls, engine: Engine) -> "UpstreamSampling":
        """The job's sampling."""
        ours = engine.sampling
        return cls(max_new_tokens=ours.max_new_tokens, top_p=ours.top_p, top_k=ours.top_k or _ALL,
                   temperature=ours.temperature)  # fmt: skip

    def new(self, **changes: Any) -> "UpstreamSampling":
        """A copy with changes."""
        return replace(self, **changes)

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> "UpstreamSampling":
        """A copy: answers end at the model's end tokens in any case."""
        return replace(self)


@dataclass
class UpstreamRequest:
    """Their `ModelRequest`."""

    rid: str = ""
    input_ids: list[int] = field(default_factory=list)
    gconfig: UpstreamSampling = field(default_factory=UpstreamSampling)
    metadata: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None


@dataclass
class UpstreamResponse:
    """Their `ModelResponse`."""

    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]
    stop_reason: str = "stop"
    tokenizer: Any = None

    @property
    def input_len(self) -> int:
        """Tokens of the input."""
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        """Tokens of the answer."""
        return len(self.output_tokens)


class UpstreamTokenizer:
    """A Hugging Face tokenizer as far as their workflows use one, by this project's."""

    def __init__(self, ours: Tokenizer) -> None:
        self._ours = ours
        self.eos_token_id = ours.end_id
        self.pad_token_id = ours.end_id

    def apply_chat_template(
        self, messages: Any, tokenize: bool = True, add_generation_prompt: bool = False, tools: Any = None, **extra: Any
    ) -> Any:
        """A chat as ids, or as text; further arguments are the template's variables."""
        given = {name: value for name, value in extra.items() if isinstance(value, bool | int | str)}
        lines = "".join(f"{{%- set {name} = {value!r} -%}}" for name, value in given.items())
        tokenizer = self._ours.with_template(lines + (self._ours.chat_template or "")) if lines else self._ours
        text = tokenizer.render_chat(messages, generation_prompt=add_generation_prompt, tools=tools)
        return self._ours.encode(text, special=False).tolist() if tokenize else text

    def decode(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of ids, special tokens included unless they are skipped."""
        return self._ours.decode([int(token) for token in ids], skip_special=skip_special_tokens)

    def encode(self, text: str, add_special_tokens: bool = True, **_: Any) -> list[int]:
        """The ids of a text."""
        return [int(token) for token in self._ours.encode(text, special=add_special_tokens)]


class RewardInThread:
    """Their `AsyncRewardWrapper`: a plain function, called beside the event loop."""

    def __init__(self, reward_fn: Callable[..., Any], timeout_seconds: float = _REWARD_S, **_: Any) -> None:
        self._reward = reward_fn
        self._timeout_s = timeout_seconds

    async def __call__(self, *arguments: Any, **row: Any) -> Any:
        """The score. Raises DataError where it takes too long: a false 0 would be trained.

        A column that is named like one of the first arguments gives way to it.
        """
        row = {name: value for name, value in row.items() if name not in REWARD_ARGUMENTS[: len(arguments)]}
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._reward, *arguments, **row), self._timeout_s)
        except TimeoutError:
            raise DataError(f"the reward did not return within {self._timeout_s:g} s", fix="make it faster") from None


class RecordingEngine:
    """Their `InferenceEngine`, for one episode: answers by ours, and remembers what it sampled."""

    def __init__(self, engine: Engine, usual: UpstreamSampling) -> None:
        self._engine = engine
        self._usual = usual  # what differs from it in a request, the workflow has changed
        self._answers: list[tuple[Ids, GenerationResult]] = []

    async def agenerate(self, request: Any) -> UpstreamResponse:
        """One answer. Sampling that the request changes is changed for this answer."""
        given, sampling = request.gconfig, self._engine.sampling
        changed: dict[str, Any] = {}
        for name in _DRAWN:
            value = getattr(given, name)
            if value != getattr(self._usual, name):
                changed[name] = tuple(value or ()) if name.startswith("stop") else 0 if value == _ALL else value
        sampling = replace(sampling, **changed)
        sampling = sampling.greedy() if given.greedy else sampling
        ids = as_ids(request.input_ids)
        is_usual = sampling == self._engine.sampling
        result = await self._engine.agenerate(GenerationRequest(ids, None if is_usual else sampling))
        self._answers.append((ids, result))
        return UpstreamResponse(
            ids.tolist(), result.output_ids.tolist(), result.logprobs.tolist(), result.versions.tolist(),
            result.finish_reason, request.tokenizer,
        )  # fmt: skip

    def episode(self, made: Any) -> Episode:
        """Their tensors `[samples, tokens]` as sequences. Raises DataError."""
        if not isinstance(made, Mapping) or not {"input_ids", "loss_mask", "rewards"} <= set(made):
            raise DataError(
                f"the workflow returned {type(made).__name__} without input_ids, loss_mask and rewards",
                fix="return such tensors; a workflow over chat completions is an agent here (docs/agents.md)",
            )
        ids, mask = (np.atleast_2d(np.asarray(made[name])) for name in ("input_ids", "loss_mask"))
        rewards = np.asarray(made["rewards"], dtype="f8").reshape(-1)
        lengths = np.atleast_2d(np.asarray(made.get("attention_mask", np.ones_like(ids)))).sum(axis=1)
        if ids.shape != mask.shape or len(rewards) != len(ids):
            raise DataError(f"input_ids {ids.shape}, loss_mask {mask.shape}, {len(rewards)} rewards don't fit together")
        return Episode([self._sequence(ids[k, :n], mask[k, :n], float(rewards[k])) for k, n in enumerate(lengths)])

    def _sequence(self, ids: Ids, mask: Any, reward: float) -> Sequence:
        """Spans where an answer of this episode stands, whole, behind the very ids that it continued."""
        logprobs, sampled = np.zeros(len(ids), "<f4"), np.zeros(len(ids), bool)
        spans, reason = [], "stop"
        for before, result in self._answers:
            start, end = len(before), len(before) + len(result.output_ids)
            stands = np.array_equal(ids[:start], before) and np.array_equal(ids[start:end], result.output_ids)
            if stands and end > start and not sampled[start:end].any():
                logprobs[start:end], sampled[start:end] = result.logprobs, True
                spans += [span.shifted(start) for span in result.spans]
                reason = result.finish_reason
        foreign = np.flatnonzero((np.asarray(mask) != 0) & ~sampled)
        if len(foreign):
            raise DataError(
                f"token {foreign[0]} has loss_mask 1, and this episode's engine did not sample it there",
                fix="train the tokens of engine.agenerate's answers only, each answer whole, behind its own input",
            )
        return Sequence(as_ids(ids), logprobs, (np.asarray(mask) != 0).astype("u1"), tuple(spans), reward, reason)


class _Silent(nullcontext[None]):
    """Stands for their metrics and traces: takes every call, keeps nothing, hands functions that it decorates back."""

    def __getattr__(self, name: str) -> "_Silent":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __bool__(self) -> bool:
        return False


def _with_messages(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with `messages`, which their data loaders make of a question."""
    text = next((row[name] for name in ("prompt", "question") if isinstance(row.get(name), str)), None)
    return dict(row) if "messages" in row or text is None else {**row, "messages": [{"role": "user", "content": text}]}


_SILENT = (
    "stats_tracker perf_tracer trace_session session_context atrace_session_phase trace_scope atrace_scope scope "
    "workflow_context record_timing get"
)


def _only(samples: list[Any]) -> Any:
    """The one sample of an episode: groups are made outside of it."""
    if len(samples) != 1:
        raise DataError(
            f"{len(samples)} samples are made one", fix="return one sample an episode, as arun_episode does"
        )
    return samples[0]


def _names() -> dict[str, Any]:
    """Names that their modules hold; every module has all of them."""
    return {
        **dict.fromkeys(_SILENT.split(), _Silent()),
        "RolloutWorkflow": UpstreamBase,
        "GenerationHyperparameters": UpstreamSampling,
        "ModelRequest": UpstreamRequest,
        "ModelResponse": UpstreamResponse,
        "AsyncRewardWrapper": RewardInThread,
        "InferenceEngine": RecordingEngine,
        "apply_chat_template": lambda tokenizer, messages, **extra: tokenizer.apply_chat_template(messages, **extra),
        "load_hf_tokenizer": lambda path: UpstreamTokenizer(Tokenizer.from_dir(path)),
        "import_from_string": lambda path: getattr(
            importlib.import_module(path.rpartition(".")[0]), path.split(".")[-1]
        ),
        "getLogger": logging.getLogger,
        "concat_padded_tensors": _only,
        "stat_scope": lambda: "",
    }


class _UpstreamModules(MetaPathFinder, Loader):
    """Finder of the modules that code for AReaL imports, and that this project has none of."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """A package for every name below theirs."""
        if not any(fullname == block or fullname.startswith(f"{block}.") for block in _BLOCKS):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        vars(module).update(_names())


def _load(target: str, place: Path) -> Any:
    """Load what `file.py:name` names. Raises DataError.

    A run has a copy of the recipe alone, so its neighbours are also looked for where the run was started, and where
    Python looks for modules.
    """
    file, _, name = target.rpartition(":")
    places = [place, Path.cwd(), *map(Path, sys.path)]
    path = next((found for each in places if file and (found := each / file).is_file()), None)
    if path is None:
        fix = "start the run where it is, put its directory on PYTHONPATH, or give its absolute path"
        raise DataError(f"{target!r} is not there: tried {place}, {Path.cwd()} and PYTHONPATH", fix=fix)
    if str(path.parent) not in sys.path:  # what it imports lies beside it
        sys.path.append(str(path.parent))
    if not any(isinstance(each, _UpstreamModules) for each in sys.meta_path):
        sys.meta_path.append(_UpstreamModules())
    known = f"areal_upstream_{path.stem}_{abs(hash(path.resolve())):x}"
    module = sys.modules.get(known)
    if module is None:
        spec = importlib.util.spec_from_file_location(known, path)
        if spec is None or spec.loader is None:
            raise DataError(f"{path} is no Python file", fix="name it file.py:name")
        module = sys.modules[known] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[known]
            said = f"{path}: {type(error).__name__}: {error}"
            raise DataError(said, fix="install what it imports where workers run; of AReaL only areal.api and "
                            "areal.utils are here") from error  # fmt: skip
    if not hasattr(module, name):
        raise DataError(f"{path} has no {name}", fix="name a function or class of that file")
    return getattr(module, name)
