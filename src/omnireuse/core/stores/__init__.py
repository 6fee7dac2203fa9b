"""Stores of reusable values: bounded mappings that know bytes and time, and nothing of what the values mean."""
