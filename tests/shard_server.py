"""A server of a folder on the loopback: http with ranges, and as much of the S3 protocol as s3fs needs; it can fail."""

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

# So that s3fs asks this server, as a user would say it: in the environment.
S3 = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def do_PUT(self):
        file = self._file()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(200, b"", {"ETag": '"put"'})

    def _file(self):
        return self.server.folder / unquote(urlsplit(self.path).path).lstrip("/")

    def _answer(self, body):
        url = urlsplit(self.path)
        self.server.asked.append((self.command, url.path, self.headers.get("Range")))
        fault = (self.server.fault if self.command == "GET" else self.server.head_fault)(url.path)
        if fault == "close":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, int):
            self._send(fault, b"")
            return
        query, file = parse_qs(url.query, keep_blank_values=True), self._file()
        if "list-type" in query:
            self._list(file, query)
        elif not file.is_file():
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>" if body else b"")
        else:
            self._content(file, body, short=fault == "short")

    def _content(self, file, body, short):
        size, headers = file.stat().st_size, {"ETag": _tag(file), "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status, first, last = 200, 0, size - 1
        if wanted and self.server.ranges:
            first, last = int(wanted[1]), min(int(wanted[2] or size), size - 1)
            status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{size}"
        length = (last + 1 - first) // (2 if short else 1)
        with file.open("rb") as opened:
            opened.seek(first)
            self._send(status, opened.read(length) if body else b"", headers, length)

    def _list(self, bucket, query):
        prefix = query.get("prefix", [""])[0]
        keys, folders = [], set()
        for path in sorted(bucket.rglob("*")):
            key = path.relative_to(bucket).as_posix()
            if not path.is_file() or not key.startswith(prefix):
                continue
            if "/" in key[len(prefix) :] and query.get("delimiter", [""])[0]:
                folders.add(prefix + key[len(prefix) :].partition("/")[0] + "/")
            else:
                keys.append((key, path.stat().st_size, escape(_tag(path))))
        text = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>{tag}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key, size, tag in keys
        )
        text += "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        head = f"<Name>b</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(keys)}</KeyCount>"
        head += "<IsTruncated>false</IsTruncated>"
        xmlns = "http://s3.amazonaws.com/doc/2006-03-01/"
        self._send(200, f'<ListBucketResult xmlns="{xmlns}">{head}{text}</ListBucketResult>'.encode(), {})

    def _send(self, status, content, headers=None, length=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)


def _tag(file):
    status = file.stat()
    return f'"{status.st_size:x}-{status.st_mtime_ns:x}"'


@contextlib.contextmanager
def served(folder, port=0):
    """A server of a folder; `fault` says what goes wrong for a path, `head_fault` for HEAD; `asked` has requests."""
    ThreadingHTTPServer.allow_reuse_address = True
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    server.folder, server.ranges, server.asked = Path(folder), True, []
    server.fault = server.head_fault = lambda path: None
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def s3_environment(server):
    """The variables by which s3fs finds a server, and forgets those before it."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return S3 | {"AWS_ENDPOINT_URL_S3": server.url, "AWS_ENDPOINT_URL": server.url}
