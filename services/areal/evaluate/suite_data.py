"""Rows of a test set: from a file that the user names, or from this machine's cache of the Hugging Face hub.

Nothing is downloaded unless that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from areal.data.adapters import read_rows
from areal.data.source import HuggingFaceSource, JsonlSource, Source
from areal.errors import ConfigError, InfraError
from areal.evaluate.suite_rows import BenchmarkSuite

_JSON_LINES = (".jsonl", ".json")


def rows_of(
    suite: BenchmarkSuite, data: Path | None, *, download: bool, say: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place. Raises ConfigError where there is no data, with what to type."""
    for file in [data] if data is not None else _from_hub(suite, download, say):
        if not file.is_file():
            raise ConfigError(f"there is no file {file}", fix="name a .jsonl or .parquet file with --data")
        for place, row, _ in read_rows(_source(file)):
            yield place, row


def _source(file: Path) -> Source:
    if file.suffix in _JSON_LINES:
        return JsonlSource(file)
    if file.suffix == ".parquet":
        return HuggingFaceSource(str(file))
    raise ConfigError(f"{file} is neither .jsonl nor .parquet", fix="convert it, one JSON object a line")


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
