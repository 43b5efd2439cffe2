"""Trainings on fixed rows: SFT, DPO, reward models, distillation. No ledger: the order of rows is known before."""
