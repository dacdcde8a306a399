"""A server under far more clients than it can serve, half of whom vanish, and what it has lost in the end."""
