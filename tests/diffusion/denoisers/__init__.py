"""Tiny random denoisers with inputs of their own: no pipeline, no text encoder, no download."""
