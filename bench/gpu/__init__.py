"""Measurements of streams, on a GPU or on CPU lanes, and what a machine with a GPU needs for them."""
