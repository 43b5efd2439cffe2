"""The distribution's name, its install command, and the check for the other library that is imported as `areal`.

Owns the command that installs an extra; every message that names one takes it from here. The name `areal` on the
package index belongs to another library with the same import name: both write to one directory, so an environment that
holds both is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from areal.errors import ConfigError

DISTRIBUTION = "areal-kube"
UPSTREAM = "areal"
"""The other library's distribution name."""


def install(*extras: str) -> str:
    """The shell command that installs this project with `extras`, for example `pip install 'areal-kube[data]'`."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'" if extras else f"pip install {DISTRIBUTION}"


def refuse_upstream(find: Callable[[str], Distribution] = distribution) -> None:
    """Raise ConfigError when the other library is installed here; `find` looks a distribution up by its name."""
    try:
        upstream = find(UPSTREAM)
    except PackageNotFoundError:
        return
    raise ConfigError(
        f"the package {UPSTREAM!r} {upstream.version} is installed in this environment, and is another library: it and "
        f"{DISTRIBUTION} are both imported as `areal` and overwrite each other's files",
        fix=f"use an environment of its own, or: pip uninstall {UPSTREAM}, then {install()} --force-reinstall",
    )
