"""Reuse across the requests of an autoregressive engine: encoder outputs, per-token states, stores."""
