"""Synchronisation on the accelerator: the plan, its planner, its verifier."""
