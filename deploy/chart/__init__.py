"""From the comments of values.yaml: its JSON schema and the pages that describe it."""
