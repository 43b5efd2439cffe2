"""A storage writer for torch's distributed checkpoint that hashes each file while it is written, and syncs it."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import xxhash
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter


class HashingWriter(FileSystemWriter):
    """Writes one rank's part of a checkpoint into `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync_files=True)
        self._files = _HashedFiles()
        self.fs = self._files

    @property
    def written(self) -> dict[str, tuple[int, str]]:
        """Size and xxh3 of every file written, by name."""
        return self._files.written

    @property
    def problem(self) -> OSError | None:
        """The first error of a write: torch raises another in its place."""
        return self._files.problem


class _HashedFiles(FileSystem):
    def __init__(self) -> None:
        self.written: dict[str, tuple[int, str]] = {}
        self.problem: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        with self.noted(), Path(path).open(mode) as file:
            stream = _HashingStream(file, self)
            yield stream
            stream.close()
            self.written[Path(path).name] = (stream.size, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)

    @contextmanager
    def noted(self) -> Generator[None, None, None]:
        """Remember the first error of the block."""
        try:
            yield
        except OSError as error:
            self.problem = self.problem or error
            raise


class _HashingStream:
    """A file that is only ever appended to."""

    def __init__(self, file: IO[Any], files: _HashedFiles) -> None:
        self._file = file
        self._files = files
        self.size = 0
        self.digest = xxhash.xxh3_64()

    def write(self, data: bytes | memoryview) -> int:
        with self._files.noted():
            self._file.write(data)
        view = memoryview(data)
        self.digest.update(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        with self._files.noted():
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        with self._files.noted():
            self._file.close()  # flushes
