"""Parts of the package against the libraries that they replace (docs/internals/own-parts.md)."""
