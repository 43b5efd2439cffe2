"""The generation agent: weights, interruption and truth beside one engine."""
