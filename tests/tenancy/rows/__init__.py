"""An app whose table each tenant has."""
