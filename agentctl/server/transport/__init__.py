"""The HTTP protocol over uvicorn: the only package that uses private attributes of uvicorn."""
