"""One file a feature. Each function reads a session's state and answers one request."""
