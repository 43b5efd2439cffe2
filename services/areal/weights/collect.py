"""Removes versions that nobody needs any more.

Keeps the latest version, the one before it, what is leased, and what these are deltas of; never touches anything newer
than the latest, because that may be announced at any moment. A removed version first loses its name, so nobody opens
half of one.
"""

import shutil
from collections.abc import Set
from pathlib import Path

from areal.errors import DataError
from areal.values.policy import PolicyId
from areal.weights.manifest import MANIFEST_NAME, Manifest
from areal.weights.publish import TMP_PREFIX

_TRASH_PREFIX = ".trash-"


def versions(root: Path) -> list[PolicyId]:
    """The complete versions under `root`, oldest first. For collection and for people; readers go by the digest."""
    if not root.is_dir():
        return []
    found = (PolicyId.from_directory(path.name) for path in root.iterdir() if path.is_dir())
    return sorted(policy for policy in found if policy is not None)


def collect(root: Path, keep: Set[PolicyId], latest: PolicyId) -> list[PolicyId]:
    """Remove what is older than `latest` and its predecessor, not in `keep`, and no base of those; returns what.

    Also removes what publishers that died left behind.
    """
    older = [policy for policy in versions(root) if policy < latest]
    needed = _with_bases(root, {*keep, *older[-1:], latest})
    removed = [policy for policy in older if policy not in needed]
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


def _with_bases(root: Path, wanted: Set[PolicyId]) -> set[PolicyId]:
    """These versions, and those that they are deltas of, back to a full one."""
    found: set[PolicyId] = set()
    ahead = list(wanted)
    while ahead:
        if (policy := ahead.pop()) in found:
            continue
        found.add(policy)
        try:
            manifest = Manifest.from_bytes((root / policy.directory / MANIFEST_NAME).read_bytes())
        except (OSError, DataError):
            continue  # nobody can read it: it keeps nothing alive
        if manifest.base_policy is not None:
            ahead.append(PolicyId.parse(manifest.base_policy))
    return found


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
