"""Models: the calls of a model, and the connections to providers."""
