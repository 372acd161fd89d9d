"""The CPU at hand as a backend: executable code in this process."""
