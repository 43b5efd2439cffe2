"""Scorers: user code and computer algebra, run in killable processes. Nothing here talks to the network."""
