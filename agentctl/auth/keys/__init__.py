"""Signing and verification keys: key material, key files, generation, rotation."""
