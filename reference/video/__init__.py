"""The moving sibling of the image pipeline: scenes, captions and the checker of short clips."""
