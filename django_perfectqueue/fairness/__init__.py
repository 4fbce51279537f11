"""Shares and limits as people set them, who changed them, and who received what."""
