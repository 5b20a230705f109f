"""The streaming HTTP client: requests, server-sent events, counting."""
