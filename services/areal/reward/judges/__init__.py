"""What runs inside a killable child process: user code and computer algebra. Nothing here talks to the network."""
