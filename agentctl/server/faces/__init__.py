"""Faces: interfaces of other systems on the same operations, each in one package."""
