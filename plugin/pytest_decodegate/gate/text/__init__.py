"""Words for verdicts: quantities, findings, advice."""
