"""What commands print: tables, text, progress."""
