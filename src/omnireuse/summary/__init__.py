"""What reuse has done: counters, words, HTML and Prometheus."""
