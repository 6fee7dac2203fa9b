"""What every room may use: checks, records in files, names from entry points, the terminal."""
