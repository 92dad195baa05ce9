"""The proof that nothing begins after a halt: servers, an endpoint that counts, a ledger of tools.

python -m tests.halts --halts 10000
"""
