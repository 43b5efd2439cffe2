"""YAML reader: one mapping from a file, as a cluster reads it, in bounded time. Imports PyYAML and nothing heavier."""
