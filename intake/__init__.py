"""The HTTP door: accept tasks, look them up, retry, cancel; the dashboard."""
