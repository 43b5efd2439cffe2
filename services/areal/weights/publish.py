"""Publishes a version atomically: nobody ever sees half of it.

Everything goes to `.tmp-<version>-<random>`, every file is fsynced, the manifest last; then one rename makes the
version visible and the parent is fsynced. Several writers may fill the staging directory; one seals it. Tensors that
share storage (tied embeddings) are the caller's business: what is given is written.
"""

import errno
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from areal.errors import BugError, DataError, InfraError
from areal.files import sync_directory, sync_file
from areal.v1 import common_pb2 as common
from areal.values.policy import PolicyId
from areal.weights.adapter import ADAPTER_CONFIG, ADAPTER_STEM
from areal.weights.manifest import MANIFEST_NAME, Canary, Manifest, TensorEntry
from areal.weights.safetensors_format import INDEX_NAME
from areal.weights.shards import DEFAULT_SHARD_BYTES, PART_PREFIX, DeltaPart, ShardPart, TensorSource, write_part

TMP_PREFIX = ".tmp-"
_OURS = (PART_PREFIX, "delta-")  # how names of files begin that writers make


@dataclass(frozen=True)
class WeightsRef:
    """A published version: what `PublishWeights` carries to the servers."""

    policy_id: PolicyId
    path: Path
    manifest_digest: str
    content_digest: str = ""

    def message(self, *, rollback: bool = False) -> common.WeightsRef:
        """The same on the wire."""
        return common.WeightsRef(
            policy_id=str(self.policy_id),
            path=str(self.path),
            manifest_digest=self.manifest_digest,
            content_digest=self.content_digest,
            rollback=rollback,
        )


def publish(
    root: Path,
    policy: PolicyId,
    tensors: Iterable[TensorSource],
    canary: Canary | None,
    extra_files: Mapping[str, bytes | Path],
    *,
    step: int | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> WeightsRef:
    """Write `policy` under `root` as a Hugging Face directory with a manifest; returns how to find it.

    One writer does all of it. `extra_files`, `step` and what is raised: as `seal` has them.
    """
    with _volume_errors(root, policy):
        staging = open_staging(root, policy)
    try:
        with _volume_errors(root, policy):
            part = write_part(staging, 0, tensors, shard_bytes)
        return seal(root, staging, policy, [part], canary, extra_files, step=step)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def copy_version(source: Path, root: Path, policy: PolicyId) -> None:
    """Copy a published version to below another root, whole or not at all. Raises InfraError for a broken disk."""
    if (root / policy.directory).is_dir():
        return
    with _volume_errors(root, policy):
        staging = open_staging(root, policy)
        try:
            for file in sorted(source.iterdir()):
                shutil.copyfile(file, staging / file.name)
                sync_file(staging / file.name)
            sync_directory(staging)
            _rename_new(staging, root / policy.directory)
            sync_directory(root)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def open_staging(root: Path, policy: PolicyId) -> Path:
    """An empty directory for the files of `policy`, under a name that no reader looks at."""
    if policy.version < 0:
        raise BugError(f"policy {policy} holds nothing: it can't be published")
    staging = root / f"{TMP_PREFIX}{policy.directory}-{uuid.uuid4().hex[:12]}"
    staging.mkdir(parents=True)
    return staging


def seal(
    root: Path,
    staging: Path,
    policy: PolicyId,
    parts: Sequence[ShardPart],
    canary: Canary | None,
    extra_files: Mapping[str, bytes | Path],
    *,
    step: int | None = None,
    frozen: Mapping[str, str] | None = None,
    before_rename: Callable[[], None] = lambda: None,
) -> WeightsRef:
    """Make a version of what the writers left in `staging`; returns how to find it.

    `extra_files` (config.json, tokenizer.json …) are copied beside the weights; with an adapter_config.json among them
    this is an adapter, of a base whose tensors have the checksums `frozen`. `step` defaults to the version.
    Sealing a policy that is already there with the same tensors and files changes nothing and returns what is there;
    with other content it raises BugError, because a policy's name is never used twice. A full or broken disk is an
    InfraError; whatever fails, nothing becomes visible.
    """
    with _volume_errors(root, policy):
        manifest = Manifest(
            policy=str(policy),
            step=policy.version if step is None else step,
            created=time.time(),
            tensors=_name_shards(staging, parts, ADAPTER_STEM if ADAPTER_CONFIG in extra_files else "model"),
            frozen=frozen or {},
            files=_write_files(staging, extra_files),
            canary=canary,
        )
        return _install(root, staging, policy, manifest, before_rename)


def seal_delta(
    root: Path,
    staging: Path,
    policy: PolicyId,
    parts: Sequence[DeltaPart],
    base: Manifest,
    canary: Canary | None,
    extra_files: Mapping[str, bytes | Path],
    *,
    before_rename: Callable[[], None] = lambda: None,
) -> WeightsRef:
    """Make a version of changes from `base`, whose files stay where they are. Otherwise as `seal`."""
    changes = {name: change for part in parts for name, change in part.changes.items()}
    if missing := base.tensors.keys() ^ changes.keys():
        raise BugError(f"a delta has the tensors of its base: {min(missing)!r} is in one of them only")
    with _volume_errors(root, policy):
        manifest = Manifest(
            policy=str(policy),
            base=base.digest(),
            base_policy=base.policy,
            step=policy.version,
            created=time.time(),
            tensors={
                name: entry.model_copy(update={"xxh3": changes[name].xxh3}) for name, entry in base.tensors.items()
            },
            deltas={name: change.delta for name, change in changes.items() if change.delta is not None},
            files=_write_files(staging, extra_files),
            canary=canary,
        )
        return _install(root, staging, policy, manifest, before_rename)


def _install(
    root: Path, staging: Path, policy: PolicyId, manifest: Manifest, before_rename: Callable[[], None]
) -> WeightsRef:
    _write(staging / MANIFEST_NAME, manifest.to_bytes())
    sync_directory(staging)
    before_rename()
    target = root / policy.directory
    if _rename_new(staging, target):
        sync_directory(root)
        return WeightsRef(policy, target, manifest.digest(), manifest.content_digest())
    there = Manifest.from_bytes((target / MANIFEST_NAME).read_bytes())
    if changes := there.changes(manifest):
        raise BugError(f"policy {policy} was published before with other content: {', '.join(changes[:3])} differs")
    return WeightsRef(policy, target, there.digest(), there.content_digest())


@contextmanager
def _volume_errors(root: Path, policy: PolicyId) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfraError(
            f"publishing policy {policy} under {root} failed: {error}",
            fix="Free space on the run's volume, or check that it is mounted and writable.",
        ) from error


def _name_shards(staging: Path, parts: Sequence[ShardPart], stem: str) -> dict[str, TensorEntry]:
    """Give the files their final names, which hold their number; several files get an index."""
    files = [entries for part in parts for entries in part.files]
    if not files:
        raise BugError("a version without tensors can't be published")
    if len(files) > 1 and stem == ADAPTER_STEM:
        raise BugError("an adapter is one file: nobody reads several")
    entries: dict[str, TensorEntry] = {}
    for index, held in enumerate(files):
        name = f"{stem}.safetensors"
        if len(files) > 1:
            name = f"{stem}-{index + 1:05d}-of-{len(files):05d}.safetensors"
        (staging / next(iter(held.values())).shard).rename(staging / name)
        if twice := entries.keys() & held.keys():
            raise BugError(f"tensor {min(twice)!r} was given twice")
        entries |= {tensor: entry.model_copy(update={"shard": name}) for tensor, entry in held.items()}
    if len(files) > 1:
        _write(staging / INDEX_NAME, index_of(entries))
    return entries


def index_of(entries: Mapping[str, TensorEntry]) -> bytes:
    """The index of a version in several files, as Hugging Face has it."""
    index = {
        "metadata": {"total_size": sum(entry.length for entry in entries.values())},
        "weight_map": {name: entry.shard for name, entry in sorted(entries.items())},
    }
    return json.dumps(index, indent=1).encode()


def _write_files(staging: Path, extra_files: Mapping[str, bytes | Path]) -> dict[str, str]:
    digests = {}
    for name, source in extra_files.items():
        reserved = name in (MANIFEST_NAME, INDEX_NAME) or name.endswith(".safetensors") or name.startswith(_OURS)
        if Path(name).name != name or name.startswith(".") or reserved:
            raise BugError(f"{name!r} can't be the name of a file beside the weights")
        content = source.read_bytes() if isinstance(source, Path) else source
        _write(staging / name, content)
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync_file(path)


def _rename_new(staging: Path, target: Path) -> bool:
    """Give the finished directory its name; False when the name is taken (a directory with files can't be replaced)."""
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


# ---- Removes versions that nobody needs any more
# Keeps the latest version, the one before it, what is leased, and what these are deltas of; never touches what is
# newer than the latest: it may be announced at any moment. A removed version first loses its name.


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
