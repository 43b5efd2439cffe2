"""The LoRA adapters that stock SGLang holds beside each other, one a version: loading, and giving room back.

Owns which are loaded. An adapter that must go is the oldest; requests that still use it are ended first, with what was
made, because the engine unloads nothing that is in use. Those are older than any staleness bound, or an evaluation's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from areal.generation.engine_client import EngineClient


class Adapters:
    """The adapters of one engine by name, oldest first."""

    def __init__(self, engine: EngineClient, slots: int, leave: Callable[[str], None]) -> None:
        """`leave` ends the requests that use an adapter."""
        self._engine = engine
        self._slots = slots
        self._leave = leave
        self._loaded: list[str] = []

    async def load(self, name: str, path: Path) -> None:
        """Load a version; the oldest one goes when there is no room."""
        if name in self._loaded:
            await self.unload(name)
        while len(self._loaded) >= self._slots:
            await self.unload(self._loaded[0])
        await self._engine.load_adapter(name, str(path))
        self._loaded.append(name)

    async def unload(self, name: str) -> None:
        """Give a version's room back."""
        self._leave(name)
        await self._engine.unload_adapter(name)
        self._loaded.remove(name)

    def forget(self) -> None:
        """The engine died, and all it held."""
        self._loaded.clear()
