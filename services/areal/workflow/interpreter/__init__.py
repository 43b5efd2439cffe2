"""Child interpreter: agents and environments of a worker in another Python, with packages of their own."""
