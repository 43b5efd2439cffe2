"""The store: what is made once for a toolchain, so that compilations take less.

Owns a directory that every cell may read and none may write. What lies in it was made in cells too, from our own
sources alone, and is found again by the toolchain's digest when the directory outlives the service.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from areal.errors import ConfigError

from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.judge.languages.table import COREUTILS, LANGUAGES, PREPARE_LIMITS
from areal_judge.sandbox.values import ImageCommand, Powers, ProgramRun, RunEnding

_PREFIX = "areal-toolchains-"
_HIDDEN = ("/dev", "/proc", "/box")  # a cell has its own there
_DONE = ".done"


class PreparationError(ConfigError):
    """A toolchain that can't make what its compilations need."""


class ToolchainRunner(Protocol):
    """The sandbox, as far as toolchains need it."""

    @property
    def powers(self) -> Powers: ...

    async def run(self, run: ProgramRun) -> RunEnding: ...


class PreparedFiles:
    """Prepared files, a directory a toolchain. Without a path it is a temporary one, gone with `close`."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.temporary = path is None
        self.path = _temporary() if path is None else Path(path).absolute()
        if path is not None:
            self._refuse_hidden("name a directory elsewhere, for example /var/cache/areal/toolchains")
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o755)  # mkdtemp's is its owner's alone, and cells are other users

    def _refuse_hidden(self, fix: str) -> None:
        real = self.path.resolve()
        if any(real.is_relative_to(hidden) for hidden in _HIDDEN):
            raise PreparationError(
                f"toolchains can't be prepared in {real}: a cell has its own {real.parts[1]} there", fix=fix
            )

    def close(self) -> None:
        """Removes a temporary store."""
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def directory(self, toolchain: Toolchain) -> Path:
        """Where a toolchain's files lie: another toolchain or another way to prepare it, another place."""
        language = LANGUAGES[toolchain.language]
        way = (language.prepare, [_resource(file) for file in language.prepare_files.values()])
        return (
            self.path / f"{toolchain.language}-{toolchain.digest}-{hashlib.sha256(repr(way).encode()).hexdigest()[:8]}"
        )

    def has(self, toolchain: Toolchain) -> bool:
        return (self.directory(toolchain) / _DONE).exists()

    def put(self, toolchain: Toolchain, files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> None:
        """Lays files into a toolchain's directory; complete or not at all. Raises PreparationError for want of room."""
        self._refuse_hidden("give the service a writable /var/tmp: in a pod, an emptyDir")
        scratch = None
        try:
            scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=self.path))
            _lay(scratch, files, links or {})
            (scratch / _DONE).touch()
            scratch.rename(self.directory(toolchain))
        except OSError as error:
            if self.has(toolchain):  # another service was faster: the same files
                return
            megabytes = sum(map(len, files.values())) >> 20
            raise PreparationError(
                f"what {toolchain.language} needs can't be kept: {error}",
                fix=f"give {self.path} room for {megabytes + 1} MB and let the service write there",
            ) from error
        finally:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)


def _lay(directory: Path, files: Mapping[str, bytes], links: Mapping[str, str]) -> None:
    directory.chmod(0o755)
    for name, data in files.items():
        file = directory / name
        if file.parent != directory:
            file.parent.mkdir(exist_ok=True)
            file.parent.chmod(0o755)
        file.write_bytes(data)
        file.chmod(0o644)
    for name, goal in links.items():
        (directory / name).symlink_to(goal)


def _temporary() -> Path:
    """A new directory that cells can see; any other where none is writable, as in a restricted pod: it stays empty."""
    with contextlib.suppress(OSError):
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/var/tmp"))
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


async def prepare(cells: ToolchainRunner, toolchain: Toolchain, words: Mapping[str, str]) -> Mapping[str, bytes]:
    """Makes a toolchain's prepared files in a cell. Raises PreparationError when its compiler won't."""
    language = LANGUAGES[toolchain.language]
    run = ProgramRun(
        ImageCommand(filled(language.prepare, words), filled_environment(language.compile_environment, words)),
        files={name: _resource(file) for name, file in language.prepare_files.items()},
        keep=language.prepared,
        limits=PREPARE_LIMITS,
        as_memory=False,
    )
    ended = await cells.run(run)
    if not ended.clean or not ended.files:
        told = ended.stderr.decode(errors="replace")[:500]
        raise PreparationError(f"preparing {language.name} ended with {ended.ending} {ended.exit_code}: {told}")
    return ended.files


def coreutils() -> dict[str, str]:
    """The programs of a bash program's PATH: name → where it is on this machine."""
    found = {name: shutil.which(name, path="/usr/bin:/bin") for name in COREUTILS}
    return {name: os.path.realpath(path) for name, path in found.items() if path}


def filled(argv: tuple[str, ...], words: Mapping[str, str]) -> tuple[str, ...]:
    """A command line of the table, its words in braces replaced."""
    return tuple(word.format_map(words) for word in argv)


def filled_environment(environment: Mapping[str, str], words: Mapping[str, str]) -> dict[str, str]:
    return {name: value.format_map(words) for name, value in environment.items()}


def _resource(file: str) -> bytes:
    return Path(__file__).with_name(file).read_bytes()
