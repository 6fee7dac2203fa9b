"""Stores of reusable values, in memory and outside the process."""
