"""Reuse across the steps of one generation: small independent choices joined by one runtime."""
