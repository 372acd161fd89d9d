"""The proof that padding the inputs of a graph changes nothing of its results."""
