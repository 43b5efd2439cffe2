"""Export of a run's metrics and evaluations to W&B, MLflow and Trackio, from the files of the run directory."""
