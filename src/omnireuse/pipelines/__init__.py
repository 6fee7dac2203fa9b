"""Pipelines as people have them: from a folder, a hub or a function, with whatever arguments and results."""
