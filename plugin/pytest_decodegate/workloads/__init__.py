"""What runs on the ranks. Standard library only at import; torch and vllm inside functions."""
