"""The scenario of halts: its paths, their endpoint, the operator and the figures."""
