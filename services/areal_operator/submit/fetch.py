"""`areal pull rljob/NAME`: a run directory here, from the one on the job's volume, also after its pods are gone; and
what its roles log next.

A pod of this command's, made with the user's own rights, mounts the run read-only. What is here already isn't fetched
again; a file that broke off goes on where it was, and stands under its name only once it has its digest.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from areal.errors import ConfigError, DataError, InfraError
from areal.record.archive import SMALL

from areal_operator.submit.cluster import Cluster
from areal_operator.submit.manifests import Json, page_dir
from areal_operator.submit.page import pod_of
from areal_operator.submit.receive import PART
from areal_operator.submit.send import Channel, Programs, Say, answer_of
from areal_operator.submit.temporary_pod import program_in

LEFT_OUT = "token access redis"  # secrets of the job
_LINE_S = 300.0
_SILENT_S = 60.0  # several times what a program that has nothing to tell is silent for
_MARK = ".rljob-uid"  # in a directory that was made from a job: whose it is
_AGAIN = "Pull again: what arrived is kept, only the rest is fetched."


def pull(
    found: Json, cluster: Cluster, parts: Sequence[str], target: Path, say: Say, programs: Programs | None = None
) -> int:
    """Fetch `parts` of the job's run into `target`; returns how many files came."""
    mark, uid = target / _MARK, found["metadata"]["uid"]
    if target.is_dir() and any(target.iterdir()) and not (mark.is_file() and mark.read_text() == uid):
        raise ConfigError(f"{target} holds something else than this job's run", fix="Name another place by --out.")
    arguments = [LEFT_OUT, *parts]
    with _beside_run(found, cluster, "give.py", arguments, say, "to read the run from", programs) as channel:
        target.mkdir(parents=True, exist_ok=True)
        mark.write_text(uid)
        return receive(channel, target, say)


def pull_beside(found: Json, cluster: Cluster, parts: Sequence[str], say: Say) -> Path:
    """A directory below runs/rljob with what says how the job went, and these parts of its run."""
    metadata = found["metadata"]
    target = Path("runs") / "rljob" / f"{metadata['namespace']}.{metadata['name']}.{metadata['uid'][:8]}"
    pull(found, cluster, [*SMALL, *parts], target, say)
    return target


def follow(
    found: Json, cluster: Cluster, offsets: Mapping[str, int], say: Say, programs: Programs | None = None
) -> Iterator[tuple[str, str]]:
    """(role, line) of what the job's roles log behind these bytes of each file of its logs, without an end.

    Raises InfraError when the pod that tells is gone.
    """
    arguments = [json.dumps(dict(offsets))]
    with _beside_run(found, cluster, "tail.py", arguments, say, "to read the logs from", programs) as channel:
        yield from lines_of(channel)


def _beside_run(
    found: Json, cluster: Cluster, script: str, arguments: list[str], say: Say, what_for: str, programs: Programs | None
) -> AbstractContextManager[Channel]:
    """One of this room's scripts in a pod that mounts the job's run."""
    text = resources.files("areal_operator.submit").joinpath(script).read_text(encoding="utf-8")
    command = ["python3", "-c", text, page_dir(found["metadata"]["name"]), *arguments]
    return program_in(pod_of(found, cluster), command, cluster, say, what_for, programs)


def lines_of(channel: Channel) -> Iterator[tuple[str, str]]:
    """(role, line) of what the other side tells."""
    while True:
        if told := answer_of(channel, "read the logs", _SILENT_S):
            yield told["role"], told["text"]


def receive(channel: Channel, target: Path, say: Say) -> int:
    """Take what the other side offers and `target` lacks."""
    offered: list[dict[str, Any]] = answer_of(channel, "read the run")
    for entry in offered:
        if PurePosixPath(entry["path"]).is_absolute() or ".." in PurePosixPath(entry["path"]).parts:
            raise DataError(f"the pod offers {entry['path']!r}, outside of the run", fix="Check the runtime's image.")
    missing = [entry for entry in offered if not _is_here(target / entry["path"], entry)]
    starts = {entry["path"]: _begun(target / entry["path"], entry["size"]) for entry in missing}
    say(f"{len(missing)} of {len(offered)} files, {sum(entry['size'] for entry in missing) / 1e6:,.1f} MB")
    channel.write(json.dumps(starts).encode() + b"\n")
    for entry in missing:
        _take(channel, target / entry["path"], entry)
        say(f"{entry['path']}  {entry['size']:,} B")
    channel.write(b"\n")
    return len(missing)


def _part(path: Path) -> Path:
    return path.with_name(f"{PART}-{path.name}")


def _begun(path: Path, size: int) -> int:
    part = _part(path)
    if part.is_file() and part.stat().st_size > size:
        part.unlink()
    return part.stat().st_size if part.is_file() else 0


def _is_here(path: Path, entry: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == entry["size"] and _digest(path) == entry["sha256"]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _take(channel: Channel, path: Path, entry: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _part(path).open("ab") as file:
        while (line := channel.line(_LINE_S)) != b".":
            try:
                file.write(base64.b64decode(line, validate=True))
            except ValueError:
                raise InfraError(f"the pod broke off: {line.decode(errors='replace')}", fix=_AGAIN) from None
    if _digest(_part(path)) != entry["sha256"]:
        _part(path).unlink()
        raise DataError(f"{entry['path']} did not arrive as digested: it is written meanwhile?", fix=_AGAIN)
    _part(path).replace(path)
