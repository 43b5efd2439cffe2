"""Published versions for tests: one full, the following deltas, each with a few words changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary
from areal.weights.publish import WeightsRef, open_staging, publish, seal_delta
from areal.weights.shards import write_delta
from areal.weights.stage import StagingArea
from areal.weights.verify import open_version
from safetensors.numpy import load_file

CANARY = Canary(token_ids=(1, 5, 2), logprobs=(0.0, -1.25, -0.5), tolerance=0.02)
FILES = {"config.json": b'{"model_type": "qwen3"}'}
NAMES = ("model.embed.weight", "model.layers.0.up.weight", "model.layers.1.up.weight", "model.norm.weight")


def weights(version: int) -> dict[str, np.ndarray]:
    """Words of a version: each changes one word in forty of the version before; the norm never changes."""
    made = {name: np.random.default_rng(7).integers(0, 2**16, (32, 20), dtype=np.uint16) for name in NAMES}
    for step in range(1, version + 1):
        random = np.random.default_rng(step)
        for name in NAMES[:-1]:
            made[name] = made[name] ^ (random.random(made[name].shape) < 0.025).astype(np.uint16)
    return made


def sources(version: int):
    return [(name, "U16", value.shape, value) for name, value in weights(version).items()]


class Volume:
    """Version 0 is full, the following are deltas of the one before."""

    def __init__(self, root: Path, last: int) -> None:
        self.root = root
        self.refs = [publish(root, PolicyId(0, 1), sources(0), CANARY, FILES, shard_bytes=3000)]
        for version in range(1, last + 1):
            self.add(version)

    def add(self, version: int) -> WeightsRef:
        policy, before = PolicyId(version, 1), self.refs[-1]
        staging = open_staging(self.root, policy)
        part = write_delta(staging, 0, weights(version - 1), sources(version))
        base = open_version(before.path, before.manifest_digest)
        self.refs.append(seal_delta(self.root, staging, policy, [part], base, CANARY, FILES))
        return self.refs[-1]

    def file(self, version: int) -> Path:
        return self.refs[version].path / "delta-00000.bin"


def take(stage: StagingArea, ref: WeightsRef) -> dict[str, np.ndarray]:
    staged = stage.prepare(ref.path, ref.manifest_digest)
    assert staged.manifest.policy_id == ref.policy_id
    assert (staged.path / "config.json").read_bytes() == FILES["config.json"]
    found: dict[str, np.ndarray] = {}
    for shard in sorted(staged.path.glob("*.safetensors")):
        found |= load_file(shard)
    return found


def same(found: dict[str, np.ndarray], version: int) -> bool:
    return found.keys() == set(NAMES) and all((found[name] == value).all() for name, value in weights(version).items())
