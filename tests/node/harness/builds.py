"""The project's images, built from docker/ as a user would build them, and packed for a node without a registry.

The base image cannot be pulled here: it is this machine's own Debian, made by debootstrap once and kept in the tools'
cache together with the builder's layers. The large Python environment is left out (`ENVIRONMENT=mounted`); see
`environment`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kube.harness.tools import ROOT, run
from node.harness.environment import MOUNT, shared_library

PACKAGES = ("ca-certificates", "python3", "python3-venv")
"""Of the base: what the images' own first stage runs, and with it every library that an interpreter loads."""
_NAME = "org.opencontainers.image.ref.name"
_KEEP_IMAGES = 100  # in the store, of them most are layers of old builds
NEEDLESS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt/archives", "var/lib/apt/lists")


class Builder:
    """buildah with a store of its own below the tools' cache."""

    def __init__(self, registry: str, tag: str) -> None:
        self.registry, self.tag = registry, tag
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._cache = cache / "areal" / "k8s" / "images"
        self._cache.mkdir(parents=True, exist_ok=True)

    def build(self, names: Iterable[str], directory: Path) -> Path:
        """Builds the images and returns an archive of them all in `directory`, for `ctr images import`."""
        if len(self._buildah("images", "--quiet", "--all").splitlines()) > _KEEP_IMAGES:
            self._buildah("rmi", "--prune", timeout_s=300)
        base = self._base()
        built = [self._build(name, base) for name in names]
        return self._pack(built, directory)

    def reference(self, name: str) -> str:
        """What an image is called on the node."""
        return f"{self.registry}/areal/{name}:{self.tag}"

    def config(self, name: str) -> dict[str, Any]:
        """How containers of a built image start."""
        told = json.loads(self._buildah("inspect", "--type=image", self.reference(name)))
        return dict(told["OCIv1"]["config"])

    def _build(self, name: str, base: str) -> str:
        arguments = ["--build-arg", f"BASE={base}", "--build-arg", "ENVIRONMENT=mounted"]
        if name == "reward":  # apt would want a mirror, and its ldconfig removes the base's link to a mounted library
            arguments += ["--build-arg", "TOOLCHAINS=python"]
        file = ROOT / "docker" / f"{name}.Dockerfile"
        command = ["build-using-dockerfile", "--isolation=chroot", "--layers", "--pull-never", *arguments]
        reference = self.reference(name)
        self._buildah(*command, "--tag", reference, "--file", str(file), str(ROOT), timeout_s=600)
        return reference

    def _base(self) -> str:
        """The base image; made when there is none for this Debian and this interpreter."""
        library = shared_library()
        release = _release()
        key = hashlib.sha256(repr((release, PACKAGES, NEEDLESS, library, MOUNT)).encode()).hexdigest()[:12]
        name = f"localhost/areal-base:{release}-{key}"
        if not self._buildah("images", "--quiet", "--filter", f"reference={name}", check=False).strip():
            with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
                root = Path(scratch) / "root"
                run(
                    [
                        "debootstrap",
                        "--variant=minbase",
                        f"--include={','.join(PACKAGES)}",
                        release,
                        str(root),
                        _mirror(),
                    ],
                    timeout_s=900,
                )
                for path in NEEDLESS:
                    shutil.rmtree(root / path, ignore_errors=True)
                    (root / path).mkdir(parents=True)
                if library is not None:  # the interpreter that pods mount was linked for another place
                    (root / "usr" / "lib" / library.name).symlink_to(MOUNT / "python" / library)
                container = self._buildah("from", "scratch").strip()
                self._buildah("add", "--quiet", container, str(root), "/", timeout_s=300)
                self._buildah("commit", "--quiet", "--rm", container, name, timeout_s=300)
        return name

    def _pack(self, references: list[str], directory: Path) -> Path:
        """One archive; what images share is in it once, also when they are the same under two names."""
        folder, archive = directory / "images", directory / "images.tar"
        pushed: dict[str, str] = {}
        for reference in references:
            identity = self._buildah("images", "--quiet", "--no-trunc", reference).strip()
            if pushed.setdefault(identity, reference) == reference:
                push = ["push", "--quiet", reference, f"oci:{folder}:{reference}"]
                self._buildah(*push, timeout_s=300)
            else:
                _name_too(folder / "index.json", pushed[identity], reference)
        with tarfile.open(archive, "w") as tar:
            tar.add(folder, arcname="")
        shutil.rmtree(folder)
        return archive

    def _buildah(self, *arguments: str, timeout_s: float = 60.0, check: bool = True) -> str:
        store = [
            "--root",
            str(self._cache / "store"),
            "--runroot",
            str(self._cache / "run"),
            "--storage-driver",
            "overlay",
        ]
        return run(["buildah", *store, *arguments], timeout_s=timeout_s, check=check).stdout


def _name_too(index: Path, known: str, other: str) -> None:
    """Gives an image of an OCI layout a second name."""
    told = json.loads(index.read_text())
    entry = next(item for item in told["manifests"] if item["annotations"][_NAME] == known)
    told["manifests"].append({**entry, "annotations": {_NAME: other}})
    index.write_text(json.dumps(told))


def _release() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    return next(line.partition("=")[2].strip('"') for line in lines if line.startswith("VERSION_CODENAME="))


def _mirror() -> str:
    """Where this machine has its own packages from."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {_release()}"]
    return run(command).stdout.split()[0]
