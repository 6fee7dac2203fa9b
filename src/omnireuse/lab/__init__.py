"""Comparing methods with the full run: metrics, records and pages."""
