"""The rollout controller: a pure core that decides (`core`), and a thin shell that talks (`main`)."""
