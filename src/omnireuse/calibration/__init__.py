"""Measure a pipeline, so that its caches need not guess."""
