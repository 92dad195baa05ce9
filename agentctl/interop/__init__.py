"""Interfaces of other systems, each in a package of its own."""
