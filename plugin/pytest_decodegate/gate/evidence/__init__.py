"""What else than the time speaks for or against a metric."""
