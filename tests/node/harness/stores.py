"""An object store for jobs on the node: their Secret of it, and what it holds of a run."""

from __future__ import annotations

import json
from typing import Any

from node.harness.node import Node
from support.s3_server import BUCKET, S3Server


def give_secret(node: Node, room: str, server: S3Server) -> None:
    given = [f"--from-literal={name}={value}" for name, value in server.options.items()]
    node.kubectl("create", "secret", "generic", "store", *given, namespace=room)


def listed(server: S3Server, name: str) -> dict[str, Any]:
    """What the store says of a run; nothing before its first copy."""
    file = server.root / "data" / BUCKET / "jobs" / name / "run.json"
    return dict(json.loads(file.read_bytes())["files"]) if file.is_file() else {}
