"""Clients of our own services: generation (routing), reward (batching)."""
