"""Gateway: an OpenAI-compatible base URL for each episode, exact to the token.

Pure cores (messages, graph, rules of retries) and thin shells (HTTP). Never talks to the ledger.
"""
