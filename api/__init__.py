"""OpenAI-compatible HTTP on an engine, as an ASGI app."""

from llamalane.api.app import create_app, drain, lifespan_of, reload_config
from llamalane.api.batch import serve_item
from llamalane.api.config import ApiConfig, ServerConfig

__all__ = ["ApiConfig", "ServerConfig", "create_app", "drain", "lifespan_of", "reload_config", "serve_item"]
