"""Adapters of environment packages, by name: `environment.name: reasoning-gym` is the `make` of reasoning_gym.py.

Each file runs in the Python that `rollout.environment.python` names, where this project need not be installed: it
imports the standard library and its package alone. `make(row, **config)` gives an environment with gymnasium's methods
over text.
"""
