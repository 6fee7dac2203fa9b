"""One pipeline, the same prompts and noise: our strategies, the caches of other libraries, and fewer steps."""
