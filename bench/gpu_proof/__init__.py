"""What a GPU proves of this project: claims, each measured on the card in a process of its own, one JSON line each.

make gpu-proof SECONDS=1500            # in a checkout
python -m gpu_proof --seconds 1500     # in what `make gpu-proof-pack` packs, on a machine without network
"""
