"""The XML interface of Google Cloud Storage, as far as its clients here use it, over a server that
has the JSON one alone. What conditions mean is the server's decision."""

from __future__ import annotations

import email.utils
import json
import re
import urllib.parse
from datetime import datetime
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape

from faulty_http import Answer, FaultyProxy, forwarded

__all__ = ["GcsProxy"]


class GcsProxy(FaultyProxy):
    """The proxy with the XML interface in front."""

    def __init__(self, service_port: int) -> None:
        super().__init__(service_port)
        self._json_port = service_port
        self._uploads: dict[str, dict[int, bytes]] = {}

    def service(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        given = {name.lower(): value for name, value in headers}
        parts = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        bucket, _, quoted = parts.path.lstrip("/").partition("/")
        key = urllib.parse.unquote(quoted)
        if method == "GET" and not key:
            return self._list(bucket, query)
        if method in ("GET", "HEAD"):
            return self._get(bucket, key, given.get("range"))
        if method == "DELETE":
            return self._json("DELETE", f"/storage/v1/b/{bucket}/o/{_quoted(key)}")
        if "uploads" in query:
            upload = uuid4().hex
            self._uploads[upload] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if "partNumber" in query:
            self._uploads[query["uploadId"]][int(query["partNumber"])] = body
            return Answer(200, [("ETag", f'"{len(body)}"')])
        if "uploadId" in query:
            found = self._uploads.pop(query["uploadId"], None)
            if found is None:
                return Answer(404, [], b"<Error><Code>NoSuchUpload</Code></Error>")
            whole = b"".join(found[number] for number in sorted(found))
            return self._put(bucket, key, whole, {}, complete=True)
        if "x-goog-copy-source" in given:
            source = urllib.parse.unquote(given["x-goog-copy-source"]).lstrip("/")
            source_bucket, _, source_key = source.partition("/")
            to = f"rewriteTo/b/{bucket}/o/{_quoted(key)}"
            return self._json("POST", f"/storage/v1/b/{source_bucket}/o/{_quoted(source_key)}/{to}")
        return self._put(bucket, key, body, given)

    def _put(
        self, bucket: str, key: str, body: bytes, given: dict[str, str], *, complete: bool = False
    ) -> Answer:
        condition = given.get("x-goog-if-generation-match")
        query = {"uploadType": "media", "name": key}
        if condition is not None:
            query["ifGenerationMatch"] = condition
        path = f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}"
        answer = self._json("POST", path, body, "application/octet-stream")
        if answer.status != 200:
            return answer
        made = json.loads(answer.body)
        headers = [("ETag", f'"{made["etag"]}"'), ("x-goog-generation", made["generation"])]
        if complete:
            whole = _xml("CompleteMultipartUploadResult", f"<ETag>{escape(made['etag'])}</ETag>")
            return Answer(200, headers, whole.body)
        return Answer(200, headers)

    def _get(self, bucket: str, key: str, wanted: str | None) -> Answer:
        known = self._json("GET", f"/storage/v1/b/{bucket}/o/{_quoted(key)}")
        if known.status != 200:
            return known
        meta = json.loads(known.body)
        found = self._json("GET", f"/storage/v1/b/{bucket}/o/{_quoted(key)}?alt=media")
        when = datetime.fromisoformat(meta["updated"].replace("Z", "+00:00"))
        headers = [
            ("ETag", f'"{meta["etag"]}"'),
            ("x-goog-generation", meta["generation"]),
            ("Last-Modified", email.utils.format_datetime(when, usegmt=True)),
        ]
        body, ranged = found.body, re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
        if ranged is None:
            return Answer(found.status, [*headers, ("Content-Length", str(len(body)))], body)
        first, last = int(ranged[1]), min(int(ranged[2] or len(body)), len(body) - 1)
        if first > last:
            return Answer(416)
        headers.append(("Content-Range", f"bytes {first}-{last}/{len(body)}"))
        return Answer(206, headers, body[first : last + 1])

    def _list(self, bucket: str, query: dict[str, str]) -> Answer:
        names = {"prefix": "prefix", "delimiter": "delimiter", "continuation-token": "pageToken"}
        wanted = {names[name]: value for name, value in query.items() if name in names}
        path = f"/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(wanted)}"
        answer = self._json("GET", path)
        if answer.status != 200:
            return answer
        found = json.loads(answer.body)
        contents = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size>"
            f"<LastModified>{item['updated']}</LastModified><ETag>{item['etag']}</ETag></Contents>"
            for item in found.get("items", [])
        )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in found.get("prefixes", [])
        )
        token = found.get("nextPageToken", "")
        more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        return _xml("ListBucketResult", contents + folders + more)

    def _json(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> Answer:
        headers = [("Host", f"127.0.0.1:{self._json_port}"), ("Content-Type", kind)]
        return forwarded(self._json_port, method, path, headers, body)


def _xml(root: str, content: str) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root}>{content}</{root}>'
    return Answer(200, [("Content-Type", "application/xml")], text.encode())


def _quoted(key: str) -> str:
    return urllib.parse.quote(key, safe="")
