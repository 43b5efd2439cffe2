"""Migration table: where each field of a job file of release 0.1 is now.

Data, and pure functions over it. A file with an old field is refused with the new place, `areal check --rewrite` writes
it anew, and a `resolved.json` of an earlier release is read by the same table.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from areal.errors import ConfigError

FIXED_ROWS = {"sft": "SFT", "dpo": "DPO", "rewardModel": "RewardModel", "distillation": "Distillation"}
"""Blocks that each training on fixed rows had to itself, and the training's name."""

OPTIMIZER = ("learningRate", "warmupSteps", "lrSchedule", "minLrRatio", "betas", "weightDecay", "eps", "gradClip")
ADVANCED = (
    "rewardBias", "rewardClip", "advantageMean", "advantageStd", "advantageUnbiased", "advantageEpsilon",
    "leaveOneOut", "advantageNormalize", "gamma", "lambda", "importanceLevel", "surrogate", "dualClip", "tauPositive",
    "tauNegative", "m2Threshold", "decoupled", "proximal", "weight", "truncate", "rejection", "rejections",
)  # fmt: skip

MOVED: dict[str, str] = {
    **{f"{block}.{field}": f"optimizer.{field}" for block in ("algorithm", *FIXED_ROWS) for field in OPTIMIZER},
    **{f"algorithm.{field}": f"algorithm.advanced.{field}" for field in ADVANCED},
    "algorithm.klCoefficient": "algorithm.kl.coefficient",
    "distillation.loss": "training.divergence",
    **dict.fromkeys(FIXED_ROWS, "training"),
    "trainer.optimizer": "",
}
"""Old dotted path below `spec` → the new one; what is below a path moves with it. Empty: there is no such field."""

_REWARD_KL = "REINFORCE++"  # its divergence was in the reward by name, and one that was given in the loss


def place_now(path: str) -> str | None:
    """Where a dotted path below `spec` of an old file is now, "" when the field is gone; None for one that stays."""
    keys = path.split(".")
    for depth in range(len(keys), 0, -1):
        if (new := MOVED.get(".".join(keys[:depth]))) is not None:
            return ".".join((new, *keys[depth:])) if new else ""
    return None


def moved(path: str, value: Any) -> str | None:
    """The sentence for an old field, by its dotted path below `spec`; None for a field of today."""
    if path == "training" and isinstance(value, str):
        return "is a block now: `training: {name: SFT, …}` on fixed rows, no such field for RL"
    if (new := place_now(path)) is None:
        return None
    return f"is now {new}" if new else "is no field any more: it had one value only"


def old_fields(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each old field that a `spec` has, dotted below it, and the sentence that says where it is now."""
    for name, value in spec.items():
        if (said := moved(name, value)) is not None:
            yield name, said
        elif isinstance(value, Mapping):
            paths = [f"{name}.{inner}" for inner in value]
            yield from ((path, said) for path in paths if (said := moved(path, None)) is not None)


def migrated(spec: Mapping[str, Any]) -> dict[str, Any]:
    """An old `spec` as a new one of the same meaning.

    Raises ConfigError where the old one names a training and has another's block: nobody can say which was meant.
    """
    blocks = {name: value for name in FIXED_ROWS if isinstance(value := spec.get(name), Mapping)}
    named = spec.get("training")
    if isinstance(named, str) or blocks:
        _one_training(named if isinstance(named, str) else "RL", list(blocks))
    optimizer: dict[str, Any] = {}
    training: dict[str, Any] = {} if not isinstance(named, str) or named == "RL" else {"name": named}
    made: dict[str, Any] = {}
    for name, value in spec.items():
        if name in FIXED_ROWS or (name == "training" and isinstance(value, str)):
            if training or name in blocks:
                made["training"] = training
                made.setdefault("optimizer", optimizer)
            for field, inner in blocks.get(name, {}).items():
                head, _, last = (place_now(f"{name}.{field}") or "").rpartition(".")
                (optimizer if head == "optimizer" else training)[last] = inner
        elif name == "algorithm" and isinstance(value, Mapping):
            made[name] = _algorithm(value, optimizer)
            made.setdefault("optimizer", optimizer)
        elif name == "trainer" and isinstance(value, Mapping) and "optimizer" in value:
            made[name] = {field: inner for field, inner in value.items() if field != "optimizer"}
        elif name == "optimizer" and isinstance(value, Mapping):
            optimizer |= value
            made[name] = optimizer
        else:
            made[name] = value
    return {name: value for name, value in made.items() if value != {} or spec.get(name) == {}}


def migrated_job(values: Mapping[str, Any]) -> dict[str, Any]:
    """A whole job with its `spec` migrated."""
    spec = values.get("spec")
    return {**values, "spec": migrated(spec)} if isinstance(spec, Mapping) else dict(values)


def _algorithm(block: Mapping[str, Any], optimizer: dict[str, Any]) -> dict[str, Any]:
    """The new `algorithm`; what belongs to the optimizer is put there."""
    made: dict[str, Any] = {}
    advanced: dict[str, Any] = dict(block.get("advanced") or {})
    kl = block.get("kl")
    for field, value in block.items():
        if field in OPTIMIZER:
            optimizer[field] = value
        elif field in ADVANCED:
            advanced[field] = value
        elif field == "klCoefficient":
            if value is not None and kl is None:  # a whole block had the last word
                made["kl"] = {"coefficient": value}
        elif field == "kl" and isinstance(value, Mapping) and block.get("name") == _REWARD_KL:
            made[field] = value if value.get("as") is not None else {"as": "loss", **value}
        elif field != "advanced" and (field, value) != ("kl", None):
            made[field] = value
    return {**made, "advanced": advanced} if advanced else made


def _one_training(named: str, blocks: list[str]) -> None:
    """Refuse an old file that says two things about its training."""
    strange = [block for block in blocks if FIXED_ROWS[block] != named]
    if strange:
        raise ConfigError(
            f"training is {named}, and the block {' and '.join(strange)} is given",
            fix="Keep the block of the training that is meant, and name that training.",
        )
