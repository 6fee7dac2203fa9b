"""What sees only the timestep, computed once: outputs of projections are kept, and their weights may leave the device.

**The invariant.** A row is returned only for an input whose bits equal those that the row was computed from, in the
same shape, strides, dtype, device and numerical settings, by weights that are unchanged since.

An input's bits are read (`values`), or it is the very tensor that this cache has handed out or read in the same call,
with the version counter it had. So a denoiser call reads one small tensor as a rule: the modulation of all blocks
begins with one.

**Calls go through the slot** that torch keeps for `module.compile()` (`hooks.interception`). Modules, their classes,
forwards, hooks and parameters stay as they are; a row comes before the hooks of accelerate or diffusers that would
bring the weights in.

**Parameters stay where they are in the model; only their data moves** (`weights`): to host memory, or to a file that
is mapped. So whoever reads a weight (`state_dict`, `save_pretrained`, a copy, a LoRA) reads the right one.

**A denoiser's tables** (`tables`) are found by looking at its first call. Weights leave at the first call of a later
round of steps in which every projection has its row. If one is missing then, the rows of all steps of the schedule are
made at once, and each projection comes in once for them (`ahead`).
"""
