"""Observability of a role: metrics, logs, waits, progress."""
