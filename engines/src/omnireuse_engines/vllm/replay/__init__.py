"""Traces of item accesses, replayed through the shared encoder cache beside LRU and the clairvoyant bound."""
