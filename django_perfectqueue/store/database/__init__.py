"""One transaction, repeated where the database asks for it; what differs by vendor."""
