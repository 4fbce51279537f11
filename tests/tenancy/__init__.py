"""A project with django-tenants, as the page on tenants shows it."""
