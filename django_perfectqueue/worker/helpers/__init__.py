"""The processes beside the processors."""
