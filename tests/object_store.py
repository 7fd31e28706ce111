"""A real S3 server of this machine, empty at first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import boto3
from fsspec import get_filesystem_class
from moto.server import ThreadedMotoServer

BUCKET = "bucket"


@dataclass(frozen=True)
class ObjectStore:
    """A server with one bucket."""

    environment: Mapping[str, str]
    """What a command needs to reach it."""
    url: str

    def put(self, key: str, content: bytes) -> str:
        """Store an object; returns its address."""
        self._client().put_object(Bucket=BUCKET, Key=key, Body=content)
        return f"s3://{BUCKET}/{key}"

    def _client(self):
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="someone",
            aws_secret_access_key="something",
        )


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run one while the block runs."""
    # fsspec keeps the connection of its first use, which was to the server of another test.
    get_filesystem_class("s3").clear_instance_cache()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        store = ObjectStore(
            {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "someone",
                "AWS_SECRET_ACCESS_KEY": "something",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_MAX_ATTEMPTS": "1",
            },
            url,
        )
        store._client().create_bucket(Bucket=BUCKET)
        yield store
    finally:
        server.stop()
