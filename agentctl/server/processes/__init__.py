"""The processes of a server: a single process, or a supervisor with workers."""
