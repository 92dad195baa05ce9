"""The public agents by library: their shapes, the answers of their models, the results."""
