"""The specified interface of diffusion caches, thin over `omnireuse.diffusion.reuse`."""
