"""Tiny real diffusers pipelines beyond the four of `tiny`: other guidance, other inputs, other schedulers."""
