"""The commands: one module for each group; a group of more than 500 lines is a package."""
