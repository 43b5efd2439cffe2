"""Rollout: the controller decides what is generated, workers run the recipe's workflow."""
