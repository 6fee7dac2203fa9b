"""Reuse in diffusion: across the steps of one generation, and of prompt embeddings across generations."""
