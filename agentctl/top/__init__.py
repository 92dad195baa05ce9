"""`agentctl top`: the live runs of a server on a full screen; needs the extra `top` (Textual)."""
