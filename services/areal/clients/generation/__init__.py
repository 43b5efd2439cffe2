"""The routing client of the generation servers."""

from areal.clients.generation.client import ActiveGeneration, Ask, GenerationClient

__all__ = ["ActiveGeneration", "Ask", "GenerationClient"]
