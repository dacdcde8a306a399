"""OpenAI's `/v1/responses`, on a server that stores none."""
