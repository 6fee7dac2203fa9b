"""Profiles: files with plans, what they promise, and under which conditions."""
