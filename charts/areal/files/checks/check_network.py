"""Two pods, one Service: pod 1 finds pod 0 by the Service's name and sends 16 MiB, which come back as a digest."""

import argparse
import hashlib
import os
import socket
import sys
import time

SENT = 16 * 1024 * 1024
PART = 64 * 1024


def serve(host, port, deadline_s):
    """Take one whole transfer and answer with its digest. Connections that end early are none."""
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        end = time.monotonic() + deadline_s
        while (left := end - time.monotonic()) > 0:
            listening.settimeout(left)
            try:
                connection, peer = listening.accept()
            except TimeoutError:
                break
            with connection:
                connection.settimeout(30)
                digest, taken = hashlib.sha256(), 0
                try:
                    while taken < SENT and (part := connection.recv(PART)):
                        digest.update(part)
                        taken += len(part)
                    if taken == SENT:
                        connection.sendall(digest.hexdigest().encode())
                        print(f"pod 0 took {taken >> 20} MiB from {peer[0]}")
                        return 0
                except OSError:
                    continue
    print("nobody reached pod 0: NetworkPolicies of the namespace, or the pods' network between nodes")
    return 1


def ask(name, port, deadline_s):
    """Send it; why it failed, or how fast it went."""
    payload = os.urandom(PART)
    expected = hashlib.sha256(payload * (SENT // PART)).hexdigest()
    end, why = time.monotonic() + deadline_s, ""
    while time.monotonic() < end:
        connected = False
        try:
            with socket.create_connection((name, port), timeout=5) as connection:
                connected = True
                connection.settimeout(20)
                began = time.monotonic()
                for _ in range(SENT // PART):
                    connection.sendall(payload)
                answer = connection.recv(len(expected), socket.MSG_WAITALL).decode()
                if answer == expected:
                    print(f"pod 1 reached {name}: {SENT / 1e6 / (time.monotonic() - began):.0f} MB/s")
                    return 0
                why = "what arrived is not what was sent" if answer else "the other side ended the connection"
        except socket.gaierror:
            why = f"no name server knows {name}: look at the cluster's DNS"
        except TimeoutError:
            why = (
                "small packets pass, large ones don't: compare the MTU of nodes and pods" if connected else "no answer"
            )
        except OSError as error:
            why = str(error)
        time.sleep(1)
    print(f"pod 1 could not send to {name}: {why}")
    return 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", required=True)
    parser.add_argument("--host", default="")  # all addresses
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--deadline-s", type=float, default=120)
    asked = parser.parse_args()
    if int(os.environ["JOB_COMPLETION_INDEX"]) == 0:
        return serve(asked.host, asked.port, asked.deadline_s)
    return ask(asked.service, asked.port, asked.deadline_s)


if __name__ == "__main__":
    sys.exit(main())
