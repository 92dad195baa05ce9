"""Models: the calls of a model, and the connections to providers.

Models that code of users receives (`agentctl.langchain` and others) are built on it.
"""
