"""The committed benchmarks: every figure in the documents comes from one of them."""
