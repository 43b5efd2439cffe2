"""The routing client of the generation servers."""

from areal.clients.generation.client import Ask, Generation, GenerationClient

__all__ = ["Ask", "Generation", "GenerationClient"]
