"""What can score a sample: `exact`, `math` and `custom`, each behind the same protocol."""
