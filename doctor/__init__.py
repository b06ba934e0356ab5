"""Look a deployment over, change nothing, and say what to do."""
