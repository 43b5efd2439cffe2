"""Looks at runs: the index of recordings, the web page, `areal why`, trackers, export, the Python library."""
