"""One package per kind of target: what turns a plan into something that runs, runs it, and accounts for its runs."""
