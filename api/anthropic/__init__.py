"""Anthropic's API: messages, streamed or not, and the number of their tokens."""

MESSAGES_PATH = "/v1/messages"
"""Where it is; what else there is stands below it."""
