"""A language model of a million parameters: small enough to make and train on one CPU core."""
