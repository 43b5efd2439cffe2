"""The distribution's name, its install command, and the check for the other library that is imported as `areal`.

Owns the command that installs an extra; every message that names one takes it from here. Nobody publishes this
distribution on the public index, so no message sends anyone there: whoever registered the name would run code on the
machines of all who follow our advice. The name `areal` on that index belongs to another library with the same import
name: both write to one directory, so an environment that holds both is refused.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path
from urllib.parse import unquote, urlparse

from areal.errors import ConfigError

DISTRIBUTION = "areal-kube"
UPSTREAM = "areal"
"""The other library's distribution name."""

ENV_INDEX = "AREAL_INDEX"
"""Names the package index of one's own that has this distribution."""

_EVERY_ROLE = ("view", "operator", "reward", "data", "engine", "trainer")

Find = Callable[[str], Distribution]


def install(*extras: str, find: Find = distribution) -> str:
    """The shell command that installs this project with `extras`: from one's own index, the checkout, or the wheel.

    `AREAL_INDEX` is the address of a package index that has it. Without one the checkout that this environment was
    installed from is named, and where there is none the file that `make wheel` writes.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    if index := os.environ.get(ENV_INDEX):
        return f"pip install --index-url {index} '{DISTRIBUTION}{wanted}'"
    if checkout := _checkout(find):
        return f"uv pip install --python {sys.executable} -e '{checkout}{wanted}'"
    return f"pip install 'dist/{_wheel(find)}{wanted}', the file that `make wheel` writes in the sources"


def command() -> str:
    """How `areal` is called in this shell: by its name where that finds this environment's, else by its path."""
    here, found = Path(sys.prefix) / "bin" / "areal", shutil.which("areal")
    if (found and Path(found).resolve() == here.resolve()) or not here.exists():
        return "areal"
    near = os.path.relpath(here)
    return str(here) if near.startswith("..") else near


def missing_package(error: ImportError, *extras: str) -> ConfigError:
    """The error for a package that isn't installed: which, and the command that brings it.

    `extras`: where the caller knows which part of the project it is; else whichever extra names the package.
    """
    package = (error.name or str(error)).split(".")[0]
    return ConfigError(
        f"this needs the package {package!r}, which is not installed here",
        fix=install(*(extras or _extras_with(package) or _EVERY_ROLE)),
    )


def refuse_upstream(find: Find = distribution) -> None:
    """Raise ConfigError when the other library is installed here; `find` looks a distribution up by its name."""
    try:
        upstream = find(UPSTREAM)
    except PackageNotFoundError:
        return
    raise ConfigError(
        f"the package {UPSTREAM!r} {upstream.version} is installed in this environment, and is another library: it and "
        f"{DISTRIBUTION} are both imported as `areal` and overwrite each other's files",
        fix=f"use an environment of its own, or: pip uninstall {UPSTREAM}, then once more: {install()}",
    )


def _checkout(find: Find) -> str | None:
    """The directory of the sources, where they are used in place."""
    try:
        said = find(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    origin = json.loads(said or "{}")
    return unquote(urlparse(origin["url"]).path) if origin.get("dir_info", {}).get("editable") else None


def _extras_with(package: str) -> tuple[str, ...]:
    """The part of the project that asks for `package`, by the name it is imported or installed by."""
    wanted = re.compile(rf"(python-)?{re.escape(package).replace('_', '[-_]')}\b.*extra == ['\"]([a-z]+)['\"]", re.I)
    found = (wanted.match(line) for line in requires(DISTRIBUTION) or ())
    extras = {match.group(2) for match in found if match}
    return tuple(extra for extra in (*_EVERY_ROLE, "judge", "traces") if extra in extras)[:1]


def _wheel(find: Find) -> str:
    try:
        version = find(DISTRIBUTION).version
    except PackageNotFoundError:  # the sources alone are on the path
        version = "*"
    return f"{DISTRIBUTION.replace('-', '_')}-{version}-py3-none-any.whl"
