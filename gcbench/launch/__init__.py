"""Start the workers, or join those that somebody started."""
