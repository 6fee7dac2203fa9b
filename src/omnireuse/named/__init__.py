"""The named caches: their options, published constants, and the strategies that they stand for."""
