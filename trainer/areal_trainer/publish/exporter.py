"""Export of published versions as Hugging Face directories, beside training.

A published version's files are a model already: an export shares their bytes, or is the adapter merged into its base.
Works from what is on the volume, so that a version whose export a crash cut off is exported with the next one.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from areal.errors import ArealError
from areal.values.policy import PolicyId
from areal.weights.collect import versions
from areal.weights.exports import Exports, link_version
from areal.weights.manifest import MANIFEST_NAME, Manifest

from areal_trainer.publish.merge import merge

_log = logging.getLogger(__name__)


class Exporter:
    """Exports of the versions under `weights`. `merged_into` is an adapter's base model and its tokenizer."""

    def __init__(self, exports: Exports, weights: Path, merged_into: tuple[Path, Path] | None = None) -> None:
        self._exports = exports
        self._weights = weights
        self._merged_into = merged_into

    def due(self, policy: PolicyId) -> bool:
        """Whether a version that is about to be written must be one that can be exported."""
        return self._exports.due(policy.version)

    def run(self, newest: PolicyId) -> None:
        """Export what is due and not there, up to `newest`; then see to `best` and to what need not stay."""
        for policy in versions(self._weights):
            version = self._weights / policy.directory
            if policy > newest or not self._exports.lacks(policy) or not _whole(version):
                continue
            if self._exports.add(policy, partial(self._write, version)) is None:
                _log.warning("step %d is not exported again: a process reads the export", policy.version)
        self._exports.tidy()

    def tidy(self) -> None:
        """The last evaluation is done: see to `best` once more."""
        self._exports.tidy()

    def _write(self, version: Path, target: Path) -> None:
        if self._merged_into is None:
            link_version(version, target)
        else:
            merge(*self._merged_into, version, target)


def _whole(version: Path) -> bool:
    """Whether a version has all its weights, so isn't a delta."""
    try:
        return Manifest.from_bytes((version / MANIFEST_NAME).read_bytes()).base is None
    except (OSError, ArealError):
        return False
