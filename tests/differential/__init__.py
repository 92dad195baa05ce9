"""Parts of the package against the libraries that they replace (docs/own-parts.md)."""
