"""The `areal` command: a table of commands, whose modules, those of other packages too, are imported when they run."""
