"""The project's images, built from docker/bake.json as a user builds them, and packed for a node without a registry.

The base image cannot be pulled here: it is this machine's own Debian, made by debootstrap once and kept in the tools'
cache together with the builder's layers. Images of `INSTALLED` are what users get, with an environment that pip made
(the layer is kept until a pin changes). The others' would take gigabytes and are left out (`ENVIRONMENT=mounted`); see
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
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kube.harness.tools import ROOT, run
from node.harness.environment import MOUNT, shared_library
from support.scripts import script

PACKAGES = ("ca-certificates", "python3", "python3-venv")
"""Of the base: what the images' own first stage runs, and with it every library that an interpreter loads."""
INSTALLED = ("operator",)
"""Images with an environment of their own, `ENVIRONMENT=install`."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
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
            # a build that was interrupted left a container: what it needs stays, and buildah calls that an error
            self._buildah("rmi", "--prune", timeout_s=300, check=False)
        built = [self._build(name) for name in names]
        return self._pack(built, directory)

    def reference(self, name: str) -> str:
        """What an image is called on the node."""
        return f"{self.registry}/areal/{name}:{self.tag}"

    def run_in_stage(self, name: str, stage: str, command: list[str]) -> str:
        """What a command says in a stage of an image that is built as users build it."""
        [image] = self._images([name], ENVIRONMENT="install")
        reference = f"localhost/areal-stage/{name}:{stage}"
        self._run_build(replace(image, reference=reference), "--target", stage)
        container = self._buildah("from", "--pull-never", reference).strip()
        try:
            return self._buildah("run", "--isolation=chroot", container, "--", *command)
        finally:
            self._buildah("rm", container)

    def config(self, name: str) -> dict[str, Any]:
        """How containers of a built image start."""
        told = json.loads(self._buildah("inspect", "--type=image", self.reference(name)))
        return dict(told["OCIv1"]["config"])

    def _build(self, name: str) -> str:
        [image] = self._images([name], ENVIRONMENT="install" if name in INSTALLED else "mounted")
        self._run_build(image)
        return str(image.reference)

    def _run_build(self, image: Any, *more: str) -> None:
        """The user's command, and what this machine's builds need beside it: no pulls, and its package index."""
        settings = self._cache / "pip.conf"
        index = os.environ.get("PIP_INDEX_URL")
        lines = ["[global]", f"cert = {_CERTIFICATES}", *([f"index-url = {index}"] if index else [])]
        settings.write_text("\n".join(lines) + "\n")
        volumes = [(settings, "/etc/pip.conf"), (_CERTIFICATES, str(_CERTIFICATES))]
        options = ["--isolation=chroot", "--pull-never", *(f"--volume={here}:{there}:ro" for here, there in volumes)]
        _, verb, *rest = script("images").build_command(("buildah",), image)
        self._buildah(verb, *options, *more, *rest, timeout_s=600)

    def _images(self, names: list[str], **variables: str) -> list[Any]:
        # reward: apt would want a mirror, and its ldconfig removes the base's link to a mounted library
        ours = {"REGISTRY": self.registry, "TAG": self.tag, "BASE": self._base, "TOOLCHAINS": "python"}
        found: list[Any] = script("images").images(names, {**ours, **variables})
        return found

    @cached_property
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
        """In the root of the checkout, as `make images` runs it."""
        store = [
            "--root",
            str(self._cache / "store"),
            "--runroot",
            str(self._cache / "run"),
            "--storage-driver",
            "overlay",
        ]
        return run(["buildah", *store, *arguments], timeout_s=timeout_s, check=check, cwd=ROOT).stdout


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
