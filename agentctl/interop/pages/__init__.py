"""The common parts of faces for pages: a conversation of a page is a session."""
