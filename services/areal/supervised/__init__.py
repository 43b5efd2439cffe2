"""Trainings on fixed rows (SFT, DPO), as far as no torch is needed: examples and the order in which rows are used."""
