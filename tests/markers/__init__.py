"""Nothing of one caller is left for the next: a proof from outside, over a whole server.

Two users start runs of every kind of agent, through every face, on reused connections of every
kind: model endpoints over HTTP and TLS, MCP servers, databases, and one pool of client connections.
Meanwhile runs are cancelled and time out, clients disconnect, models fail in the middle of their
answers, and workers are killed. Every text of a user has a random marker (`text`). The model
endpoint, the MCP servers and the tools write a ledger of what they get (`endpoint`, `mcp_program`,
`hosted`), and the client keeps what it receives (`client`). The ledger and the client may find
markers of one user and session only, and a tool only that of the run that calls it (`judge`). An
answer may have text of another run of its session, whose history the model gets.

    python -m tests.markers --runs 10000 --seed 1
"""
