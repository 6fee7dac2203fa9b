"""The regions, skipped parts of a step: one file each."""
