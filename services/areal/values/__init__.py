"""Values that every role names in the same way."""
