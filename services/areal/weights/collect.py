"""Removes versions that nobody needs any more.

Keeps the latest version, the one before it, and what is leased; never touches anything newer than the latest, because
that may be announced at any moment. A removed version first loses its name, so nobody opens half of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Set
from pathlib import Path

from areal.values.policy import PolicyId
from areal.weights.publish import TMP_PREFIX

_TRASH_PREFIX = ".trash-"


def versions(root: Path) -> list[PolicyId]:
    """The complete versions under `root`, oldest first. For collection and for people; readers go by the digest."""
    if not root.is_dir():
        return []
    found = (PolicyId.from_directory(path.name) for path in root.iterdir() if path.is_dir())
    return sorted(policy for policy in found if policy is not None)


def collect(root: Path, keep: Set[PolicyId], latest: PolicyId) -> list[PolicyId]:
    """Remove what is older than `latest` and its predecessor and not in `keep`; returns what was removed.

    Also removes what publishers that died left behind.
    """
    older = [policy for policy in versions(root) if policy < latest]
    removed = [policy for policy in older[:-1] if policy not in keep]
    for policy in removed:
        directory = root / policy.directory
        trash = root / f"{_TRASH_PREFIX}{policy.directory}"
        shutil.rmtree(trash, ignore_errors=True)
        try:
            directory.rename(trash)
        except FileNotFoundError:  # another collector was faster
            continue
        shutil.rmtree(trash, ignore_errors=True)
    _remove_leftovers(root, latest)
    return removed


def _remove_leftovers(root: Path, latest: PolicyId) -> None:
    if not root.is_dir():
        return
    for path in root.iterdir():
        if path.name.startswith(_TRASH_PREFIX):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(TMP_PREFIX):
            policy = PolicyId.from_directory(path.name.removeprefix(TMP_PREFIX).rpartition("-")[0])
            if policy is None or policy <= latest:  # a living publisher works on something newer
                shutil.rmtree(path, ignore_errors=True)
