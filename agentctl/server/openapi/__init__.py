"""The OpenAPI document, its examples, and the pages that show it."""
