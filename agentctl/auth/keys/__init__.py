"""Signing and verification keys: key material, key files, generation, key rotation."""
