"""Cores of microcontrollers as a backend: compiled, proved and exported here, run elsewhere."""
