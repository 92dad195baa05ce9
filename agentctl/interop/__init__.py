"""Interfaces of other systems, one package each, which register themselves as extensions.

The core imports none of them. What a face of the server has in common is in `server/routing.py`.
"""
