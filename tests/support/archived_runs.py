"""Small run directories for tests of their copies."""

from __future__ import annotations

from pathlib import Path


def make_run(root: Path, step: int = 8) -> Path:
    """A directory like a run's at a step: every kind of file that one has; repeated with a later step, it has grown."""
    lines = b"".join(b'{"step":%d}\n' % one for one in range(step))
    files = {
        "resolved.json": b"{}",
        "live.json": b'{"step":%d}' % step,
        "metrics.jsonl": lines,
        "journal/controller.jsonl": lines * 2,
        "evidence/fence-1.jsonl": lines * 3,
        "fences/00000001": b"",
        "dataset/train/rows": b"rows" * 50,
        "recipe/recipe.py": b"def reward(): ...\n",
        "logs/trainer.log": lines,
        "exports/step-4/model.safetensors": b"w" * 3000,
        "exports/step-4/config.json": b"{}",
        "access/worker.token": b"secret token",
        "redis/trainer.password": b"secret",
        "weights/v00000004.f1/model.safetensors": b"w" * 3000,
        "cards/lock": b"",
    }
    for at in range(4, step + 1, 4):
        files[f"checkpoints/step-{at:06d}.f1/rank.distcp"] = bytes([at]) * 5000
        files[f"checkpoints/step-{at:06d}.f1/.metadata"] = b"index %d" % at
        files[f"checkpoints/step-{at:06d}.f1/trainer.json"] = b"{%d}" % at
    files[f"checkpoints/step-{step + 4:06d}.f1.tmp/rank.distcp"] = b"half"
    known = sorted((root / "checkpoints").glob("step-*")) if root.is_dir() else []
    for path, data in files.items():
        parent = (root / path).parent
        if known and parent.parent.name == "checkpoints" and parent.name < known[0].name:
            continue  # collected
        parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def tree(root: Path) -> dict[str, bytes]:
    """Contents by path, without what is half-written."""
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {path: data for path, data in found.items() if ".tmp/" not in path and not path.endswith(".part")}
