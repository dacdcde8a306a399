"""`/dashboard`: a live page of what the engine does, and the data that it shows."""
