"""The prompt-embedding cache: how it works, in a page.

**A hit is what encoding anew would give.** What an embedding may depend on is a wide, cheap set of values that is
looked at before and after a call. No access is recorded, and nothing of anybody's classes is replaced.

**The code says where to look** (`code`): the names that `encode_prompt` and all that it can reach mention. What the
pipeline holds under them is a `Look`; modules that run, told by torch's forward pre-hook (`encoding`), count with all
that they are (`survey`). Both are compared in microseconds; if something differs, the content decides: a digest of
weights and one of settings.

**What a call itself writes is no input of it** (`view`), as long as calls alone write it: a counter, a memo.

**The key of a call** (`call`) holds the state of what counts for it, its arguments (`keys`), the device of the result,
torch's settings, and the epoch. Old weights never come back, so their entries are dropped.

**A value is stored in tensors of its own** (`entry`), and their version counters tell whether a consumer changed it.

**A miss is loaded by one caller** (`request`): from the store outside the process, which keeps with each value what its
encoding depended on, or else from the encoder. The others wait. A list of prompts is a value of its own.
"""
