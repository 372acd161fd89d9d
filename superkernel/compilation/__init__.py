"""From a graph to what a kernel runs: the stages in order, what they hand on, and what they leave behind."""
