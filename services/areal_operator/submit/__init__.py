"""`areal submit`: a job whose files are on this machine, made ready for a cluster and applied."""
