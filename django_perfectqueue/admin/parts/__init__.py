"""What several pages of the admin are made of."""
