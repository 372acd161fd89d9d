"""Graphs, and the bodies that sub-operators are cut into: what is compiled, free of targets."""
