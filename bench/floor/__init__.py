"""The best that this machine can do with a model, and how near to it the engine comes."""
