"""Placement on the accelerator."""
