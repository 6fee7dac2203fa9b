"""The commands that the encoder outputs of vLLM add to ``omnireuse``."""
