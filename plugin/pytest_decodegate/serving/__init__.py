"""A real inference server and the client that counts its tokens."""
