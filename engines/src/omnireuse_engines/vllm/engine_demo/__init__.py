"""The demonstration of the engine caches: conversations over images, with the caches off and on."""
