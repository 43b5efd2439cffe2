"""Proof of a GPU: correctness, memory and speed claims measured on the card, a JSON line each.

make gpu-proof SECONDS=1500            # in a checkout
python -m gpu_proof --seconds 1500     # in what `make gpu-proof-pack` packs, on a machine without network
"""
