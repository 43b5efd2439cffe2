"""Memory of an engine that gives it back, in a process of its own: `python -m support.engine_memory MODEL`.

Among other tests the process has memory of theirs, which the engine takes again without asking the system.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import sys
from pathlib import Path

import psutil
from areal.engine.commands import KV_CACHE, WEIGHTS
from areal.engine.embedded import EngineOptions, TorchEngine


def anonymous() -> int:
    """Bytes of this process that no file has."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


async def release(model: Path) -> tuple[int, int, int]:
    """Bytes while it serves, while it has given all back, and when it serves again."""
    everything = frozenset({WEIGHTS, KV_CACHE})
    engine = TorchEngine(EngineOptions(model, skip_tokenizer=True), lambda error: None)
    engine.start()
    held = anonymous()
    assert (await engine.release_memory(everything)).success
    asleep = anonymous()
    await engine.resume_memory(everything)
    assert (await engine.load(model, "1.f1", flush_cache=True, abort_all=False)).success
    awake = anonymous()
    engine.stop()
    return held, asleep, awake


if __name__ == "__main__":
    print(json.dumps(asyncio.run(release(Path(sys.argv[1])))))
