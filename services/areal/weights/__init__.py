"""Policy versions as directories: published atomically, verified by checksum, collected when nobody needs them.

Owns the layout `weights/<v00000042.f7>/` (a Hugging Face safetensors directory plus `manifest.json`). Promises that a
version is visible only when it is complete. Never imports torch: tensors come and go as buffers.
"""
