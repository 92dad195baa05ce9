"""HTTP/1.1 below the application: the only package that uses uvicorn's internals."""
