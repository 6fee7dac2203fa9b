"""The prompt-embedding cache: how it works, in a page.

**A hit is what encoding anew would give.** While ``encode_prompt`` runs after a miss, what it reads is noted (a
`Reading`): attributes of its pipeline, and modules that run. What all of that holds at one moment is a `Sight`; as long
as its state is the same, so is the result, whatever branches, decorators and base classes the code has.

**Each value that was read has a `Survey`**, which compares in microseconds whether all that it holds is as it was. If
something differs, the content decides: a digest of weights and one of settings. Modules that ran count whole, also in
part; others (a denoiser, for its dtype) with their identity, dtype and configuration.

**The key of a call** (`call`) holds the state of what such a call was seen to read, its arguments (`keys`), the device
of the result, torch's settings, and the epoch. Old weights never come back, so their entries are dropped.

**A value is stored in tensors of its own** (`entry`), and their version counters tell whether a consumer changed it.

**A miss is loaded by one caller** (`request`): from the store outside the process, which keeps with each value what its
encoding read, or else from the encoder. The others wait. A list of prompts is a value of its own.
"""
