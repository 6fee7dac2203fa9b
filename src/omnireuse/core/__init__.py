"""Reuse across the requests of an autoregressive engine: encoder inputs, and per-token states."""
