"""The tensors behind an encoder cache: on the device, in host memory, on disk, in Redis."""

from omnireuse.core.encoder_outputs.shared import SharedEncoderOutputs
from omnireuse.core.encoder_outputs.store import EncoderOutput, EncoderOutputStore

__all__ = ["EncoderOutput", "EncoderOutputStore", "SharedEncoderOutputs"]
