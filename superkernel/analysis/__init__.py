"""What is asked of compilations and runs: why, how long, where the time went, and whether it is right."""
