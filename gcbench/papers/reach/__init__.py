"""Time to a score: which method reaches it first, by link and workers."""
