"""The regions: what is skipped, one file each."""
