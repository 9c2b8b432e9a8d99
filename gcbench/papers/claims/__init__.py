"""The claims of the papers: relations between rows, the verdicts on them, and what is missing."""
