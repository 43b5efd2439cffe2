"""The Python environment of this checkout, as a folder that pods mount read-only at /opt/areal/env.

Nothing is copied: the interpreter and the installed packages are shown there by bind mounts inside the node. The
project's own code is not in it, images have that.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

MOUNT = Path("/opt/areal/env")
APP = "/opt/areal/app"


def shared_library() -> Path | None:
    """libpython below the interpreter's prefix; None when the interpreter needs none, or the machine's own."""
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    found = Path(sys.base_prefix) / "lib" / f"{library}.1.0"
    return found.relative_to(sys.base_prefix) if found.exists() and sys.base_prefix != "/usr" else None


def binds(folder: Path) -> list[tuple[Path, Path]]:
    """What to show where below `folder`."""
    return [(Path(sys.base_prefix), folder / "python"), (Path(sysconfig.get_paths()["purelib"]), folder / "packages")]


def write(folder: Path) -> None:
    """The few files that make it a virtual environment."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{version}"):
        (folder / "bin" / name).symlink_to(f"../python/bin/python{version}")
    (folder / "pyvenv.cfg").write_text(f"home = {MOUNT}/python/bin\ninclude-system-site-packages = false\n")
    packages = folder / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "checkout.pth").write_text(f"{MOUNT}/packages\n{APP}\n")
