"""The effects of reuse: counters, words, HTML and Prometheus."""
