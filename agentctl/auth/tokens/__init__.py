"""JSON Web Tokens and service account tokens: formats, claims, minting and verification."""
