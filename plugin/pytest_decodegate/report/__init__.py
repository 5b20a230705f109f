"""What people read: progress, failure texts, the verdict table."""
