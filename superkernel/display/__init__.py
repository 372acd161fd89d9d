"""What is shown of runs: traces as pages and files, and the pieces of HTML that notebooks show."""
