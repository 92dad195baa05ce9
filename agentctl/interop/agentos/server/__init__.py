"""The interface of AgentOS, for its clients, on the operations of this server (docs/agentos.md).

It replaces the endpoints whose requests or responses differ from those of AgentOS. Paths, policy,
audit log and effects are those of the replaced operations. A layer that rewrites responses would
parse each one again, also streams.
"""
