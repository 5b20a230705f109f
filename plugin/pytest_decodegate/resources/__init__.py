"""What a session holds while it measures: the GPUs, the server under test, progress and deadlines."""
