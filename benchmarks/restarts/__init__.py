"""A worker that is restarted again and again under load: ``python -m benchmarks.restarts``."""
