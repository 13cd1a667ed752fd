"""How many requests does an object store get from a call, and how many datasets does it open?

Counts on an S3 server of this machine; no time is measured. What has `again` in its name is done by
a process that has done it before, all else by one that hasn't seen the graph.

    python benchmarks/requests.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support import faulty_s3, requests, s3


def main() -> None:
    """Print a table."""
    with s3.serving() as endpoint, faulty_s3.in_front_of(endpoint) as proxy:
        bucket = s3.Bucket("requests", endpoint)
        bucket.client().create_bucket(Bucket=bucket.name)
        print(f"{'call':<28}{'requests':>9}{'opens':>7}")
        for name, count in requests.costs(bucket, proxy).items():
            print(f"{name:<28}{count.requests:>9}{count.opens:>7}")


if __name__ == "__main__":
    main()
