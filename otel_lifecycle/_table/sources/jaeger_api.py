"""Asking a Jaeger: addresses as people have them, answers that are bounded in size, time and number.

| address | gives |
|---|---|
| `http://host:16686?service=x&lookback=3600` | the traces of a service, window by window |
| `http://host:16686/search?service=x&lookback=custom&start=…&end=…` | the same, as copied from the page |
| `http://host:16686/trace/<id>`, `/api/traces/<id>`, `/api/v3/traces/<id>` | one trace |

Each of them may stand below a base path, such as `http://host/jaeger/ui/search?…`.
"""

from __future__ import annotations

import base64
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from otel_lifecycle._table.errors import NoAnswer, Unusable
from otel_lifecycle._table.sources.decoders import decoder_of
from otel_lifecycle._table.sources.lenient import loads
from otel_lifecycle._table.sources.tally import ReadingTally

PAGE: Final = 1000
"""Traces asked for at a time; a window that has as many is halved."""
SHORTEST_US: Final = 1000
"""A window is not halved below a millisecond; what a full one lacks is counted as cut short."""
MOST_PAGES: Final = 20_000
"""Answers of one address: ten million traces.  A server that fills every page must not be asked for ever."""
LARGEST_BODY: Final = 256 * 2**20
TIMEOUT_S: Final = 60
"""Seconds that a server may be silent."""
DEADLINE_S: Final = 300
"""Seconds that one answer may take: a server that sends a byte now and then is never silent."""
DEFAULT_LOOKBACK_S: Final = 3600

_ONE: Final = re.compile(r"(?P<base>.*?)/(?:api/(?P<three>v3/)?traces|trace)/(?P<id>[0-9a-fA-F]{1,32})/?")
_SEARCH: Final = re.compile(r"(?P<base>.*?)(?:/search|/api/traces|/api/v3/traces)?/?")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# One mebibyte: the size and the deadline are checked between reads.
_READ: Final = 2**20


def without_credentials(address: str) -> str:
    """Return an address as it may be printed: without a user and a password."""
    # Used for every message and note: a report that is sent to others must not contain a password.
    return re.sub(r"(?<=://)[^/?#@]*@", "", address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The traces of some time: the address of the API, what to ask for, and the window in epoch microseconds."""

    url: str
    asked: Mapping[str, str]
    start: int
    end: int


def fetch(source: str, now_us: int, tally: ReadingTally) -> Iterator[object]:
    """Yield the answers of a Jaeger's query API, window by window, so that one answer is held at a time.

    Further parameters of the address are Jaeger's own (``operation``, ``tags``, ``start`` and ``end`` in microseconds,
    ``lookback`` in seconds); without a service, all of them are asked for.  Raises NoAnswer for a server that does not
    answer as Jaeger does, Unusable for an address that makes no sense.
    """
    try:
        parts = urllib.parse.urlsplit(source)
    except ValueError as error:
        raise Unusable(f"{without_credentials(source)} is not an address: {error}") from error
    host = urllib.parse.urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    one = _ONE.fullmatch(parts.path)
    if one is not None:
        yield _get(f"{host}{one['base']}/api/{one['three'] or ''}traces/{one['id']}")
        return
    found = _SEARCH.fullmatch(parts.path)
    base = host + (found["base"] if found is not None else "")
    for search in _searches(source, base, dict(urllib.parse.parse_qsl(parts.query)), now_us):
        yield from _windows(search, tally)


def _searches(source: str, base: str, asked: dict[str, str], now_us: int) -> Iterator[Search]:
    end = _number(source, asked, "end", now_us)
    back = _number(source, asked, "lookback", DEFAULT_LOOKBACK_S, 1e6)
    start = _number(source, asked, "start", end - back)
    # The number of traces that the page shows is not a limit for a report.
    asked.pop("limit", None)
    given = asked.pop("service", None)
    # Jaeger's search needs a service, so "all" is one search for each.
    services = [given] if given is not None else _services(f"{base}/api/services")
    for service in services:
        yield Search(url=f"{base}/api/traces", asked={**asked, "service": service}, start=start, end=end)


def _services(url: str) -> list[str]:
    found = _get(url, decoded=False)
    data = found.get("data") if isinstance(found, dict) else None
    return [str(name) for name in data] if isinstance(data, list) else []


def _number(source: str, asked: dict[str, str], name: str, default: int, scale: float = 1) -> int:
    """Take a number of microseconds out of the query; Jaeger's own page writes ``lookback=1h`` and ``custom``, too."""
    raw = asked.pop(name, None)
    if raw is None or (name == "lookback" and raw == "custom"):
        return int(default * scale)
    unit = _UNITS.get(raw[-1:], 1.0)
    try:
        return int(raw) if scale == 1 else int(float(raw.rstrip("smhd")) * unit * scale)
    except (ValueError, OverflowError) as error:
        form = "seconds" if name == "lookback" else "epoch microseconds"
        raise Unusable(f"{without_credentials(source)}: {name}={raw} is not a number of {form}") from error


def _windows(search: Search, tally: ReadingTally) -> Iterator[object]:
    pending, pages = [(search.start, search.end)], 0
    while pending:
        if pages >= MOST_PAGES:
            raise NoAnswer(f"{without_credentials(search.url)}: full pages only, {pages:,} of them; narrow the window")
        pages += 1
        start, end = pending.pop()
        # Jaeger has no paging: it returns ``limit`` traces of a window and does not say that it left some out.
        query = urllib.parse.urlencode({**search.asked, "start": start, "end": end, "limit": PAGE})
        answer = _get(f"{search.url}?{query}")
        full = isinstance(answer, dict) and len(answer.get("data") or ()) >= PAGE
        if full and end - start > SHORTEST_US:
            middle = (start + end) // 2
            # The full answer is not used: the halves return its traces again, and each would count as a duplicate.
            pending += [(middle + 1, end), (start, middle)]
            continue
        if full:
            place = without_credentials(search.url)
            tally.add("truncated", f"{place}: more than {PAGE} traces within a millisecond")
        yield answer


def _get(url: str, *, decoded: bool = True) -> object:
    """Return an answer of the API; NoAnswer where there is none, or it is something else."""
    place = without_credentials(url)
    try:
        body = _body(url)
    # A URL that http.client refuses is one of its own exceptions, and no ValueError.
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoAnswer(f"{place}: {error}") from error
    try:
        document = loads(body)
    except orjson.JSONDecodeError as error:
        # Jaeger answers any unknown path with its page and status 200, so a wrong address shows here first.
        looks = "a web page" if body.lstrip()[:1] == b"<" else "no JSON"
        raise NoAnswer(f"{place}: the answer is {looks}, not one of Jaeger's query API") from error
    _check(document, place, decoded)
    return document


def _check(document: object, place: str, decoded: bool) -> None:
    if not isinstance(document, dict):
        raise NoAnswer(f"{place}: the answer is not one of Jaeger's query API")
    if document.get("errors") or document.get("error"):
        raise NoAnswer(f"{place}: {document.get('errors') or document.get('error')!r:.200}")
    # ``data: null`` is Jaeger's way to say "no traces"; the list of services holds names, which no decoder knows.
    if document.get("data", ()) is None or (not decoded and "data" in document):
        return
    if decoder_of(document) is None:
        raise NoAnswer(f"{place}: the answer is not one of Jaeger's query API")


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect within the server that was named, and no other: the user trusts that one."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        asked, told = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        # The standard handler would send the Authorization header on, even to plain HTTP.
        if (asked.scheme, asked.netloc) != (told.scheme, told.netloc):
            raise urllib.error.URLError(f"it redirects to another server, {told.scheme}://{told.hostname}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _body(url: str) -> bytes:
    """Return the body of an answer; OSError where it is too large or takes too long."""
    deadline, chunks, size = time.monotonic() + DEADLINE_S, list[bytes](), 0
    with _opener().open(_request(url), timeout=TIMEOUT_S) as answer:
        # read1 returns what has come; read would wait until all of it is there.
        while chunk := answer.read1(_READ):
            size += len(chunk)
            if size > LARGEST_BODY:
                raise OSError(f"an answer of more than {LARGEST_BODY >> 20} MiB")
            if time.monotonic() > deadline:
                raise OSError(f"an answer that took more than {DEADLINE_S} s")
            chunks.append(chunk)
    return b"".join(chunks)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_SameHost)


def _request(url: str) -> urllib.request.Request:
    """Return the request; a user and password of the address go into a header, as browsers do."""
    parts = urllib.parse.urlsplit(url)
    # urllib takes the part before "@" for a part of the host name.
    bare = without_credentials(url)
    request = urllib.request.Request(bare)  # noqa: S310 - is_url let http and https in only
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    return request
