"""What a user holds: kernels and their two kinds, bound calls, results, and what notebooks show of them."""
