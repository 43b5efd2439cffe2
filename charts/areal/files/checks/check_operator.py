"""The operator answers that it is ready, and one of its replicas leads."""

import argparse
import sys
import time
import urllib.error
import urllib.request

from cluster import call, namespace


def ready(url):
    """Whether it says so, and what went wrong if not."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200, f"answers {answer.status}"
    except (urllib.error.URLError, OSError) as error:
        return False, str(error)


def leader(name):
    """Who holds the lease, or ""."""
    status, answer = call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace()}/leases/{name}")
    return (answer.get("spec", {}).get("holderIdentity") or "") if status == 200 else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--lease", required=True)
    parser.add_argument("--deadline-s", type=float, default=90)
    asked = parser.parse_args()
    end = time.monotonic() + asked.deadline_s
    while True:
        is_ready, why = ready(asked.url)
        who = leader(asked.lease) if is_ready else ""
        if is_ready and who:
            print(f"the operator is ready; {who} leads")
            return 0
        if time.monotonic() > end:
            print(f"{asked.url}: {why}" if not is_ready else f"nobody holds the lease {asked.lease}")
            return 1
        time.sleep(2)


if __name__ == "__main__":
    sys.exit(main())
