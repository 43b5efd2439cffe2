"""Diagnosis of a run that waits: facts in, one cause out. Pure but for the reading of the facts."""
