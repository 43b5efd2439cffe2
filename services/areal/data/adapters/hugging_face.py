"""Hugging Face datasets: from the hub, from `save_to_disk`, or from local data files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal.data.source import HuggingFaceSource, describe
from areal.distribution import install
from areal.errors import ConfigError, DataError, InfraError

_BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".txt": "text", ".arrow": "arrow"}


def read(source: HuggingFaceSource) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
    """Yields the rows of one split, with columns renamed."""
    dataset = _load(source)
    what = describe(source)
    have = list(dataset.column_names)
    for wanted, original in source.columns.items():
        if original not in have:
            raise DataError(
                f'{what}: no column "{original}" to make "{wanted}" from (found {", ".join(have)})',
                fix="correct huggingFace.columns in the job",
            )
    for number, row in enumerate(dataset):
        renamed = {wanted: row[original] for wanted, original in source.columns.items()}
        taken = set(source.columns.values())
        yield f"{what}, row {number}", {**{k: v for k, v in row.items() if k not in taken}, **renamed}, None


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
                raise DataError(f"{local}: unknown kind of data file", fix=f"use one of {', '.join(_BUILDERS)}")
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
