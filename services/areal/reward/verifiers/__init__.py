"""Verifiers `exact`, `math`, `code` and `custom`, each behind the same protocol."""
