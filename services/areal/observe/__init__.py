"""What a role tells about itself: metrics, logs, waits, progress."""
