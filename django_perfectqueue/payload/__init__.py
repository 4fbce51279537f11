"""What travels with a task: its data, codecs, context, journal, and what is masked of it."""
