"""The demonstration: the reference pipeline in full, with caches, and with fewer steps, all from the same noise."""
