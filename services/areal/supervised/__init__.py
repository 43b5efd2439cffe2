"""Trainings on fixed rows, as far as no torch is needed: examples, the order of rows, whether a teacher fits."""
