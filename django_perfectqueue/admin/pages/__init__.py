"""The pages of the admin, one model a file."""
