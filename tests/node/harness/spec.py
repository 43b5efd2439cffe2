"""What a node is started with: written by the test run, read by the node's keeper and by its inside."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

PREFIX = "areal-node-"


@dataclass(frozen=True)
class NodeSpec:
    """All paths are absolute. `directory` and `cgroup` are the node's to fill and its keeper's to remove."""

    directory: Path
    logs: Path
    tools: Path
    runc: str
    cni: str
    archives: tuple[Path, ...]  # of images, to import before pods may start
    binds: tuple[tuple[Path, Path], ...]  # folders of this machine, and where in `directory` the node shows them
    api_descriptor: int  # a listening socket of the machine's loopback: the way in to the API server

    @property
    def cgroup(self) -> str:
        """One a node, named like its folder."""
        return self.directory.name

    @property
    def file(self) -> Path:
        """Where it is written."""
        return self.directory / "spec.json"

    def write(self) -> None:
        """For the node's own processes."""
        self.file.write_text(json.dumps(asdict(self), default=str, indent=1))

    @classmethod
    def read(cls, file: Path) -> NodeSpec:
        """What `write` wrote."""
        told = json.loads(file.read_text())
        return cls(
            directory=Path(told["directory"]),
            logs=Path(told["logs"]),
            tools=Path(told["tools"]),
            runc=told["runc"],
            cni=told["cni"],
            archives=tuple(Path(path) for path in told["archives"]),
            binds=tuple((Path(source), Path(target)) for source, target in told["binds"]),
            api_descriptor=told["api_descriptor"],
        )
