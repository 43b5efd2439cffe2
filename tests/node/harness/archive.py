"""Images made of files of this machine, without a builder: one layer, one tar that containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_image(
    target: Path, name: str, files: Mapping[str, Path], *, links: Mapping[str, str], entry: Sequence[str]
) -> None:
    """Writes a docker-archive; `files` and `links` by their absolute path in the image. It has a /tmp."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for place in ("tmp",):
            folder = tarfile.TarInfo(place)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
        for place, source in files.items():
            info = tarfile.TarInfo(place.lstrip("/"))
            info.size, info.mode = source.stat().st_size, 0o755
            with source.open("rb") as content:
                tar.addfile(info, content)
        for place, goal in links.items():
            info = tarfile.TarInfo(place.lstrip("/"))
            info.type, info.linkname = tarfile.SYMTYPE, goal
            tar.addfile(info)
    content = layer.getvalue()
    layer_digest = hashlib.sha256(content).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(entry), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }
    encoded = json.dumps(config).encode()
    config_name = hashlib.sha256(encoded).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{layer_digest}.tar"]}]
    with tarfile.open(target, "w") as tar:
        parts = {config_name: encoded, f"{layer_digest}.tar": content, "manifest.json": json.dumps(manifest).encode()}
        for part, data in parts.items():
            info = tarfile.TarInfo(part)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
