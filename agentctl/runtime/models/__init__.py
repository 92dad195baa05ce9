"""Models: the calls of a model, and the connections to providers.

Models that code of users receives, such as those of `agentctl.langchain`, are built on it.
"""
