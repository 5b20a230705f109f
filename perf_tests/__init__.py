"""The perf suite of LLM inference hosts; installed as pytest_decodegate.perf_tests."""
