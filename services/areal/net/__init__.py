"""Everything about gRPC: channels, servers, authentication, errors over the wire, heartbeats.

The only room that configures it.
"""
