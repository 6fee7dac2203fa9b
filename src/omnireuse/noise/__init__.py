"""Noise levels, schedulers, what is forecast of an output, and the signals between steps."""
