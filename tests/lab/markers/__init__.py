"""The scenario of markers: texts of two users, and where each of them arrives."""
