"""The prompt-embedding cache: how it works, in a page.

**An embedding is a function of what the encode reads.** The key of a call holds its arguments and the *state*: the
epoch, the adapters, the settings and autocast. The code of ``encode_prompt`` says which attributes of the pipeline it
uses (`reads`): plain values among them are settings and stand in the key; all others are parts and are watched.

**The epoch grows when a part changed.** An audit takes a `Snapshot` of all watched weights: identity, version counters,
dtypes, shapes and 64 values of each tensor. A snapshot that does not continue the one before starts a new epoch. Every
miss audits. A hit compares identities, version counters and addresses, and audits where one differs (`watch`).

**A value is stored in tensors of its own** (`entry`), and their version counters tell whether a consumer changed it.

**A miss is loaded by one caller** (`request`): from the store outside the process, or else from the encoder. The others
wait. A list of prompts is loaded as one value, or as its rows where that was seen to give the same bits (`rows`).
"""
