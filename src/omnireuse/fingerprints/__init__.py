"""Has it changed? One answer for prompts, tables of modulation, plans and profiles.

A fingerprint is taken of an object with all that it holds: weights by storage, version and address, layers by type and
code, plain values by value. It is compared in two ways:

- **with itself, in microseconds** (`watch`): the same objects, tensors at the same versions and addresses, memory that
  was not free meanwhile. If this holds, nothing changed that torch or Python tells of.
- **with another one, by content** (`survey`, `tensors`): checksums of tensors, digests of code and vocabularies, words
  for all else. Equal content of two processes gives equal words.

What can change unseen (an iterator, a random generator, a tensor that counts no changes) has no fingerprint:
`UnkeyableError` says so, and whoever asks computes anew.
"""
