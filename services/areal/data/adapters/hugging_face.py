"""Hugging Face datasets: from the hub, from `save_to_disk`, or local data files and globs of their shards.

JSON, CSV and parquet are read by `areal.data.adapters.files`, not by the library: it guesses types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal.data.adapters.files import KINDS, is_data_file, read_file
from areal.data.source import HuggingFaceSource, describe
from areal.distribution import install
from areal.errors import ConfigError, DataError, InfraError
from areal.workflow.rows.forms import column_of

_BUILDERS = {".txt": "text", ".arrow": "arrow"}


def read(source: HuggingFaceSource) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
    """Yields the rows of one split, with columns renamed."""
    shards = files_of(source)
    what = describe(source)
    rows = _rows_of_files(shards) if shards else _rows_of_library(source, what)
    first = True
    for place, row in rows:
        if first:
            _refuse_unknown(source, row, what)
            first = False
        renamed = {wanted: column_of(row, original) for wanted, original in source.columns.items()}
        taken = set(source.columns.values())
        yield place, {**{k: v for k, v in row.items() if k not in taken}, **renamed}, None


def files_of(source: HuggingFaceSource) -> list[Path]:
    """The local data files that a source names, by a path or a pattern, in the order of their names; none otherwise."""
    path = Path(source.path)
    if path.is_file():
        return [path] if is_data_file(path) else []
    if any(character in path.name for character in "*?["):
        return sorted(file for file in path.parent.glob(path.name) if is_data_file(file))
    return []


def _rows_of_files(shards: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for shard in shards:
        for place, row, _ in read_file(shard):
            yield place, row


def _rows_of_library(source: HuggingFaceSource, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(_load(source)):
        yield f"{what}, row {number}", dict(row)


def _refuse_unknown(source: HuggingFaceSource, row: Mapping[str, Any], what: str) -> None:
    for wanted, original in source.columns.items():
        if original not in row and column_of(row, original) is None:
            raise DataError(
                f'{what}: no column "{original}" to make "{wanted}" from (found {", ".join(row)})',
                fix="correct huggingFace.columns in the job",
            )


def _load(source: HuggingFaceSource) -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError("this dataset needs the package `datasets`", fix=f"install it: {install('data')}") from None
    what = describe(source)
    local = Path(source.path)
    try:
        if (local / "dataset_dict.json").exists() or (local / "state.json").exists():
            loaded = datasets.load_from_disk(str(local))
            return loaded[source.split] if isinstance(loaded, datasets.DatasetDict) else loaded
        if local.is_file():
            builder = _BUILDERS.get(local.suffix)
            if builder is None:
                raise DataError(
                    f"{local}: unknown kind of data file", fix=f"use one of {', '.join((*KINDS, *_BUILDERS))}"
                )
            return datasets.load_dataset(builder, data_files={source.split: str(local)}, split=source.split)
        return datasets.load_dataset(source.path, source.name, split=source.split, revision=source.revision)
    except (DataError, ConfigError):
        raise
    except KeyError as error:
        raise DataError(f"{what}: no split {error}", fix="name an existing split in huggingFace.split") from None
    except ConnectionError as error:
        raise InfraError(
            f"{what}: the hub cannot be reached: {_first_line(error)}",
            fix="connect, or give a local folder (datasets.load_dataset(…).save_to_disk(folder)) as huggingFace.path",
        ) from None
    except Exception as error:  # the library raises many types for a name that doesn't exist, offline included
        raise DataError(
            f"{what} cannot be loaded: {type(error).__name__}: {_first_line(error)}",
            fix="check huggingFace.path, name and split; without network give a local folder or file as path",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
