"""The scenario of pairs: operations that stop at each of their points while others run."""
