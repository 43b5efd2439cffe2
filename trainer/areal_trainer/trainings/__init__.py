"""Trainings on fixed rows: SFT and DPO. No ledger, no controller: the order of rows is known before the run."""
