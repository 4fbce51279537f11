"""Who is next and how much: arithmetic, with no database in sight."""
