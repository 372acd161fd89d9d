"""Code of programs for microcontrollers: a table of calls, and the function that walks it."""
