"""Tuning: the first pictures of a pipeline are measured, and the plan that suits them best serves the others."""
