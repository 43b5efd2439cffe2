"""AReaL on Kubernetes: asynchronous reinforcement learning for language models, one job file, anywhere."""

__version__ = "0.1.0"
