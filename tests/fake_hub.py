"""A Hub of one process: the few addresses of the Hugging Face Hub that pushing and loading a model need."""

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


class FakeHub(ThreadingHTTPServer):
    """Keeps what was pushed in `repositories`, by name and path, and the `tokens` that were sent."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories, self.created, self.tokens, self.messages = {}, [], set(), []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    def log_message(self, *said):
        pass

    def tell(self, said=None, status=200, headers=(), content=None):
        content = json.dumps(said).encode() if content is None else content
        self.send_response(status)
        for name, value in (("Content-Length", str(len(content))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def read(self):
        self.server.tokens.add(self.headers.get("Authorization"))
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self):
        body, hub = self.read(), self.server
        if self.path == "/api/repos/create":
            said = json.loads(body)
            name = f"{said['organization']}/{said['name']}" if said.get("organization") else said["name"]
            private = said.get("private") or said.get("visibility") == "private"  # older and newer clients
            hub.created.append((name, bool(private)))
            hub.repositories.setdefault(name, {})
            return self.tell({"url": f"{hub.address}/{name}", "name": name})
        if self.path == "/api/validate-yaml":
            return self.tell({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
            return self.tell({"files": [file | {"shouldIgnore": False} for file in files]})
        if found := re.fullmatch(r"/api/models/(.+)/commit/([^?]+)(\?.*)?", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    hub.repositories[found[1]][line["value"]["path"]] = content
                elif line["key"] == "header":
                    hub.messages.append(line["value"]["summary"])
            return self.tell({"commitUrl": f"{hub.address}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT})
        return self.tell({"error": self.path}, 404)

    def do_GET(self):
        self.read()
        if found := re.fullmatch(r"/api/models/([^/]+/[^/?]+)(?:/revision/([^?]+))?(?:\?.*)?", self.path):
            files = self.server.repositories.get(found[1])
            if files is None or found[2] not in (None, "main", COMMIT):
                code = "RepoNotFound" if files is None else "RevisionNotFound"
                return self.tell({"error": "not found"}, 404, [("X-Error-Code", code)])
            siblings = [{"rfilename": name} for name in files]
            return self.tell({"id": found[1], "modelId": found[1], "sha": COMMIT, "siblings": siblings})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^?]+(?:\?.*)?", self.path):
            files = self.server.repositories[found[1]].items()
            return self.tell([{"type": "file", "path": p, "size": len(c), "oid": _tag(c)} for p, c in files])
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
            content = self.server.repositories[found[1]][found[2]]
            return self.tell(content=content, headers=[("ETag", f'"{_tag(content)}"'), ("X-Repo-Commit", COMMIT)])
        return self.tell({"error": self.path}, 404)

    do_HEAD = do_GET


def _tag(content):
    return hashlib.sha1(content).hexdigest()


@contextlib.contextmanager
def hub():
    """A Hub on this machine, while the block runs."""
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
