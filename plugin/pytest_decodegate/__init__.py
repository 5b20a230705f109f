"""decodegate: may this upgrade of an LLM inference host go in?"""
