"""The Kubernetes API without a transport: resources, typed errors, apply requests; used by operator and submit."""
