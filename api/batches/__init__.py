"""OpenAI's files and batches: work that is handed in as a file, done when there is room, and kept on disk."""
