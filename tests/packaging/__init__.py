"""The files of a release, and the files in `packaging/`, used by the programs that they are for."""
