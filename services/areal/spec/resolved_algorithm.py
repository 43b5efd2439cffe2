"""Preset defaults of each algorithm name, resolved under a job's own fields.

Pure. The only place that knows names: everything else reads resolved values.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

from pydantic import BaseModel

from areal.spec.algorithm import CriticBlock, ExpertFields, Kl, Level, OverlongBlock, PolicyGradient
from areal.spec.job import JobSpec
from areal.yaml_file.table import read_table

_OVERLONG_SHARE = 5  # DAPO's window of 4096 is a fifth of its longest answer, 20480

_BLOCKS: dict[str, type[BaseModel]] = {"critic": CriticBlock, "kl": Kl, "overlong": OverlongBlock}


def _preset(values: dict[str, Any]) -> dict[str, Any]:
    blocks = {name: values[name] for name in _BLOCKS if values.get(name) is not None}
    return values | {name: _BLOCKS[name].model_validate(block) for name, block in blocks.items()}


_PRESETS = read_table("areal.spec", "algorithms.yaml")
BASE: dict[str, Any] = _preset(_PRESETS["defaults"])  # GRPO's
NAMES: dict[str, dict[str, Any]] = {name: _preset(row) for name, row in _PRESETS["names"].items()}


@dataclass(frozen=True)
class AlgorithmValues:
    """The values in force of the fields that a name decides."""

    reward_scale: float
    advantage_mean: Level
    advantage_std: Literal["group", "batch", "none", "mean"]
    leave_one_out: bool
    zero_variance: Literal["keep", "mask", "filter"]
    advantage_normalize: Level
    importance_level: Literal["token", "sequence"]
    surrogate: Literal["ppo", "none", "sapo", "cispo", "dppo"]
    clip_low: float
    clip_high: float
    m2_threshold: float | None
    overlong: OverlongBlock | None  # None where its factor is 0; maxTokens is given
    kl: Kl | None  # None where its coefficient is 0
    critic: CriticBlock | None
    loss_aggregation: Literal["token", "sequence", "constant"]
    proximal: Literal["trainingPass", "recompute", "loglinear", "behaviour"]

    @property
    def shown(self) -> str:
        """All values on one line, as a job file would give them."""
        return ", ".join(f"{camel(field.name)}: {shown(getattr(self, field.name))}" for field in fields(self))


def resolve(spec: JobSpec) -> AlgorithmValues:
    """The algorithm of a job with every default filled in."""
    algorithm = spec.algorithm
    usual = {**BASE, **NAMES[algorithm.name]}
    values = {name: usual[name] if (given := _given(algorithm, name)) is None else given for name in BASE}
    if values["kl"] is not None and values["kl"].coefficient == 0:
        values["kl"] = None
    if values["clip_high"] is None:
        values["clip_high"] = values["clip_low"]
    if values["zero_variance"] is None or (algorithm.zero_variance is None and values["advantage_mean"] != "group"):
        signal = values["advantage_mean"] != "group" or algorithm.teacher is not None  # of a group of equal rewards
        values["zero_variance"] = "keep" if signal else "mask"
    values["overlong"] = _overlong(spec, values["overlong"])
    return AlgorithmValues(**values, proximal=_proximal(algorithm, values))


def has_critic(spec: JobSpec) -> bool:
    """Whether a value model is trained beside the policy."""
    return spec.is_rl and resolve(spec).critic is not None


def has_reference(spec: JobSpec) -> bool:
    """Whether the start model stays beside the policy, for a KL divergence; an adapter's base is one already."""
    return spec.is_rl and spec.trainer.lora is None and resolve(spec).kl is not None


def needs_scores(spec: JobSpec) -> bool:
    """Whether rewards have a part in what is learned: a teacher alone needs nobody who scores."""
    return spec.is_rl and (spec.algorithm.teacher is None or resolve(spec).reward_scale != 0)


def one_turn(spec: JobSpec) -> bool:
    """Whether an answer is one turn, so that sampling.maxNewTokens is the longest."""
    return spec.rollout.workflow == "rlvr"


def whole_batches_for(spec: JobSpec) -> str:
    """Why no gradient is taken of a batch's first groups while its last ones are sampled; empty where it is the same.

    It is where a group's advantages and loss need the group alone, and all terms of the loss are divided alike.
    """
    meant, algorithm = resolve(spec), spec.algorithm
    apart = meant.kl is not None or algorithm.entropy_coefficient != 0
    needed = {
        "miniBatches above 1": algorithm.mini_batches > 1,
        "a critic": meant.critic is not None,
        "a teacher": algorithm.teacher is not None,
        "a KL penalty in the reward": meant.kl is not None and meant.kl.where == "reward",
        "advantages compared over the batch": "batch"
        in (meant.advantage_mean, meant.advantage_std, meant.advantage_normalize),
        "a router loss": spec.trainer.router_aux_coefficient + spec.trainer.router_z_coefficient > 0,
        "m2Threshold": meant.m2_threshold is not None,
        f"a KL or entropy term beside lossAggregation {meant.loss_aggregation}": apart
        and meant.loss_aggregation != "token",
        "sharedCards": spec.shared_cards,
    }
    return ", ".join(name for name, needs in needed.items() if needs)


def _given(algorithm: PolicyGradient, name: str) -> Any:
    """What a job says of a field that a name decides; None where it says nothing."""
    return getattr(algorithm.advanced if name in ExpertFields.model_fields else algorithm, name)


def _overlong(spec: JobSpec, found: OverlongBlock | None) -> OverlongBlock | None:
    """The penalty with its longest length; a name's own window shrinks with a short answer."""
    if found is None or found.factor == 0:
        return None
    longest = spec.rollout.sampling.max_new_tokens
    if spec.algorithm.overlong is None:
        if not one_turn(spec) or longest < _OVERLONG_SHARE:
            return None
        return found.model_copy(update={"max_tokens": longest, "window": min(found.window, longest // _OVERLONG_SHARE)})
    return found if found.max_tokens is not None else found.model_copy(update={"max_tokens": longest})


def _proximal(
    algorithm: PolicyGradient, values: dict[str, Any]
) -> Literal["trainingPass", "recompute", "loglinear", "behaviour"]:
    advanced = algorithm.advanced
    if not advanced.decoupled or (values["surrogate"] == "dppo" and advanced.proximal == "auto"):
        return "behaviour"
    if advanced.proximal != "auto":
        return advanced.proximal
    before = algorithm.mini_batches > 1 or values["m2_threshold"] is not None
    before = before or (values["kl"] is not None and values["kl"].where == "reward") or algorithm.teacher is not None
    return "recompute" if before else "trainingPass"


def camel(name: str) -> str:
    """A field as a job file writes it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def shown(value: Any) -> str:
    """A value as a job file writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, OverlongBlock | Kl | CriticBlock):
        given = value.model_dump(by_alias=True, exclude_none=True)
        if given.get("placement") == "same":  # where its weights are is no value of the loss
            del given["placement"]
        return "{" + ", ".join(f"{name}: {shown(inner)}" for name, inner in given.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def named(field: str) -> str:
    """A text field's value in force as an expression in CEL. What is derived from other fields is '' there."""
    block = "algorithm.advanced" if field in ExpertFields.model_fields else "algorithm"
    given, usual = f"self.spec.{block}.{camel(field)}", f"'{BASE[field] or ''}'"
    for name, values in NAMES.items():
        if field in values:
            usual = f"self.spec.algorithm.name == '{name}' ? '{values[field]}' : {usual}"
    return f"(has({given}) ? {given} : ({usual}))"
