"""Between the service manager and the supervisor."""
