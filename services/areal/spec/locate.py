"""Path lookup for a job file's paths.

A relative path is looked for below the current directory first, then below the job file's directory, so that a job runs
from a checkout's root and from beside its file alike.
"""

from __future__ import annotations

from pathlib import Path

from areal.errors import ConfigError, DataError


def candidates(path: str, base_dir: Path) -> list[Path]:
    """The places where `path` is looked for, in order, without repetition."""
    wanted = Path(path).expanduser()
    places = [wanted] if wanted.is_absolute() else [Path.cwd() / wanted, base_dir.absolute() / wanted]
    return list(dict.fromkeys(places))


def locate(path: str, base_dir: Path) -> Path | None:
    """The first place where `path` exists, absolute; None when there is none."""
    return next((place for place in candidates(path, base_dir) if place.exists()), None)


def must_locate(path: str, base_dir: Path, *, what: str, where: str = "", fix: str) -> Path:
    """As `locate`; raises ConfigError that names every place tried. `where` is the file and line of the field."""
    found = locate(path, base_dir)
    if found is None:
        tried = " and ".join(str(place) for place in candidates(path, base_dir))
        raise ConfigError(f"{where + ': ' if where else ''}{what} {path!r} is not there: tried {tried}", fix=fix)
    return found


def refuse_pipes(*paths: Path) -> None:
    """Raise DataError for the first that is there and is neither file nor directory: its reader may wait for ever."""
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DataError(f"{path} is no regular file", fix="Put a file there, or correct the path.")
