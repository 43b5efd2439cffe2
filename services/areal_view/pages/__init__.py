"""The web page of runs: a read-only server over run directories. It dials nobody and writes nothing into a run."""
