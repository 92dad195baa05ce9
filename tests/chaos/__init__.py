"""Servers and their database are killed under load; then stored data is compared with responses.

python -m tests.chaos --minutes 5 --clients 64
"""
