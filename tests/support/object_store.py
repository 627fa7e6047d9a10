"""A little S3: buckets in memory, behind HTTP on a free port, enough for pyarrow to list and read them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@contextmanager
def serving_objects(objects: Mapping[str, bytes]) -> Iterator[str]:
    """Serves "bucket/key" objects until the block ends; gives the query of URLs that lead there."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, format: str, *arguments: object) -> None:
            """Says nothing."""

        def _answer(self, *, with_body: bool) -> None:
            url = urlsplit(self.path)
            name = unquote(url.path).strip("/")
            query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
            if name in objects:
                self._object(objects[name], with_body=with_body)
            elif "list-type" in query:
                self._send(200, _listing(objects, name, query), "application/xml", with_body=with_body)
            else:
                self._send(404, b"", "application/xml", with_body=with_body)

        def _object(self, content: bytes, *, with_body: bool) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted is None:
                self._send(200, content, "binary/octet-stream", with_body=with_body)
                return
            part = content[int(wanted[1]) : int(wanted[2]) + 1 if wanted[2] else None]
            self._send(206, part, "binary/octet-stream", with_body=with_body)

        def _send(self, status: int, content: bytes, kind: str, *, with_body: bool) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", kind)
            self.send_header("Last-Modified", formatdate(0, usegmt=True))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=nowhere"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _listing(objects: Mapping[str, bytes], bucket: str, query: Mapping[str, str]) -> bytes:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    keys = sorted(name.removeprefix(f"{bucket}/") for name in objects if name.startswith(f"{bucket}/"))
    found, folders = [], set()
    for key in (key for key in keys if key.startswith(prefix)):
        below = key[len(prefix) :]
        if delimiter and delimiter in below:
            folders.add(prefix + below.partition(delimiter)[0] + delimiter)
        else:
            found.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified>"
                f"<Size>{len(objects[f'{bucket}/{key}'])}</Size></Contents>"
            )
    found += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
    return (
        f'<?xml version="1.0"?><ListBucketResult><Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>'
        f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>"
    ).encode()
