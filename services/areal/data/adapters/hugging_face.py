"""Hugging Face datasets: from the hub, from `save_to_disk`, or local data files and globs of their shards.

JSON, CSV and parquet are read by `areal.data.adapters.files`, not by the library: it guesses types.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from areal.data.adapters.files import KINDS, is_data_file, read_file
from areal.data.source import HuggingFaceSource, describe
from areal.distribution import install
from areal.errors import ConfigError, DataError, InfraError
from areal.spec.locate import is_pattern, split_pattern
from areal.workflow.rows.forms import column_of

_BUILDERS = {".txt": "text", ".arrow": "arrow"}
_OTHER_SPLITS = {"train", "test", "validation", "valid", "val", "dev", "eval"}
_SHOWN = 8  # files in a message


def read(source: HuggingFaceSource) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
    """Yields the rows of one split, with columns renamed."""
    shards = files_of(source)
    what = describe(source)
    rows = _rows_of_files(source, shards) if shards else _rows_of_library(source, what)
    for place, row in rows:
        renamed = {wanted: column_of(row, original) for wanted, original in source.columns.items()}
        taken = set(source.columns.values())
        yield place, {**{k: v for k, v in row.items() if k not in taken}, **renamed}, None


def files_of(source: HuggingFaceSource) -> list[Path]:
    """The local data files that a source names, by a path, a pattern or a folder as the hub has it; none otherwise.

    Raises DataError where no file fits a pattern, or a folder has no such split.
    """
    path = Path(source.path)
    if path.is_file():
        return [path] if is_data_file(path) else []
    if path.is_dir():
        return [] if _saved_to_disk(path) else _files_of_split(path, source.name, source.split)
    if not is_pattern(source.path):
        return []
    found = _fitting(*split_pattern(path))
    if not found:
        raise DataError(f"no data file fits {source.path}", fix=f"correct the path; {', '.join(KINDS)} are read")
    return found


def _saved_to_disk(folder: Path) -> bool:
    return (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()


def _fitting(folder: Path, pattern: str) -> list[Path]:
    """Data files that fit a pattern, by name."""
    return sorted(file for file in folder.glob(pattern) if file.is_file() and is_data_file(file))


def _files_of_split(folder: Path, name: str | None, split: str) -> list[Path]:
    """A split's data files in a folder as the hub has it: as its card's `configs` say, else by names (`train-0.jsonl`).

    None of them where the folder has only files of other kinds: the library may know those.
    """
    listed = _configs(folder / "README.md")
    config = next((each for each in listed if each.get("config_name", "default") in (name, "default")), None)
    if config is None and len(listed) == 1 and name is None:
        config = listed[0]
    if config is not None and (patterns := _patterns(config, split)):
        return [file for pattern in patterns for file in _fitting(folder, pattern)]
    base = folder / name if name is not None and (folder / name).is_dir() else folder
    files = [
        file for file in _fitting(base, "**/*") if not any(p.startswith(".") for p in file.relative_to(base).parts)
    ]
    words = {file: set(re.split(r"[^a-z]+", file.relative_to(base).as_posix().lower())) for file in files}
    if own := [file for file in files if split.lower() in words[file]]:
        return own
    if not files:
        return []
    if split == "train" and not any(words[file] & _OTHER_SPLITS for file in files):
        return files
    names = ", ".join(file.relative_to(folder).as_posix() for file in files[:_SHOWN])
    raise DataError(f"{folder}: no file is of the split {split!r} (found {names})", fix="correct huggingFace.split")


def _configs(card: Path) -> list[dict[str, Any]]:
    """The `configs` of a dataset card's front matter; none where there is no such card."""
    try:
        text = card.read_text(encoding="utf-8")
        front = yaml.safe_load(text.split("---", 2)[1]) if text.startswith("---") else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, IndexError):
        return []
    listed = front.get("configs") if isinstance(front, dict) else None
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _patterns(config: Mapping[str, Any], split: str) -> list[str]:
    """A config's patterns of files for a split; a list or text without splits is all of it `train`."""
    given = config.get("data_files")
    entries = given if isinstance(given, list) else [given]
    found: list[Any] = []
    for entry in entries:
        paths = entry.get("path") if isinstance(entry, dict) and entry.get("split") == split else entry
        if isinstance(paths, dict) or (paths is entry and split != "train"):
            continue
        found += paths if isinstance(paths, list) else [paths]
    return [str(path) for path in found if path]


def _rows_of_files(source: HuggingFaceSource, shards: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for shard in shards:
        for number, (place, row, _) in enumerate(read_file(shard)):
            if number == 0:
                _refuse_unknown(source, row, place)
            yield place, row


def _rows_of_library(source: HuggingFaceSource, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(_load(source)):
        if number == 0:
            _refuse_unknown(source, row, what)
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
        if _saved_to_disk(local):
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
