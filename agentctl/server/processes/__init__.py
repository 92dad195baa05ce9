"""The processes of a server: one process, or a supervisor with workers."""
