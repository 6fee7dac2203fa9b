"""The machinery of the prompt-embedding cache: keys, what they must hold, values, rows, the wrapper."""
