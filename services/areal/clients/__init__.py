"""Clients of our own services: generation (routing), reward (batching), controller (a worker's stream)."""
