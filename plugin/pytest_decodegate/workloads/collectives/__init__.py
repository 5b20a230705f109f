"""AllReduce and its relatives, by each way to issue them."""
