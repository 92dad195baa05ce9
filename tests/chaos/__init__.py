"""Servers and their database killed under load, and an audit of the truth behind it.

python -m tests.chaos --minutes 5 --clients 64
"""
