"""All limits of the service, each with its default and the reason for it.

The first group holds the defaults of options of ``rankfall serve``; the others are fixed. Other modules read them as
``limits.NAME`` when they need them, so that a test can change a single one.
"""

from __future__ import annotations

import resource

# --- defaults of options (see `Settings`) ---------------------------------------------------------------------------

QUEUE_REQUESTS = 256  # --queue: further requests get 503 at once; a longer queue only adds waiting time
BATCH_REQUESTS = 32  # --batch: larger batches barely raise the throughput but delay every request of the batch
DEADLINE_MS = 1000  # --deadline: a request without a deadline of its own gets 504 after this time
KEEP_ALIVE_SECONDS = 75  # --keep-alive: longer than the 60 s of common load balancers, so that they close first
SAMPLE_ITEMS = 10  # --sample-items: drawn from what each stage dropped
BODY_BYTES = 1_000_000  # --max-body: larger bodies get 413 before they are read

# --- connections and headers (enforced by http_protocol, because uvicorn has no such limits) ------------------------

CONNECTIONS = 4096  # per worker, further ones get 503: connections without a bound exhaust the file descriptors
RESERVED_FILES = 128  # file descriptors that a worker keeps for anything but connections (bundles, logs, metrics)
HEADER_BYTES = 65_536  # path and headers of a request: uvicorn would collect headers in memory without end
RECEIVED_BYTES = 65_536  # read from a connection at once; what follows a request waits in memory for its response
HEADER_SECONDS = 10.0  # from the connection to complete headers: a silent client would keep its connection forever
DISCARDED_BODY_BYTES = 64_000_000  # read and dropped after a refused request, to keep the connection; then it closes
RESPONSE_SECONDS = 30.0  # for reading a response: a client that does not read would keep the response in memory
LAST_RESPONSE_SECONDS = 10.0  # for reading a response that was written before a shutdown, which waits for it
UNSENT_BYTES = 16_384  # that the kernel takes although the client cannot receive them yet: it would take 4 MB
UNREAD_BYTES = 256_000_000  # of all such responses, per worker: then the connection that has waited longest is aborted
LISTEN_BACKLOG = 2048  # connections that the kernel holds until a worker accepts them, enough for a burst

# --- bodies (enforced by http_io.BodyReader) ------------------------------------------------------------------------

BODY_SECONDS = 5.0  # for receiving a body: a slow client gets 408 and occupies no place in the queue
ALL_BODIES_BYTES = 64_000_000  # of all bodies in memory, per worker: many bodies at once get 503, not the OOM killer
LARGE_BODY_BYTES = 65_536  # larger bodies are parsed in a thread, so that other requests are not delayed
PARSE_QUEUE_BYTES = 4_000_000  # of large bodies that wait for that thread, which takes tenths of a second for them
JSON_LEVELS = 254  # of nested arrays and objects, as many as orjson serializes: requests have fewer than ten
BYTES_PER_NAME = 10  # a body may have one name, and one array or object, per 10 bytes of --max-body: requests have half
NAMED_KEY_BYTES = 10_000  # errors name the key that smaller bodies have twice: the search takes a millisecond

SHOWN_ITEMS = 10_000  # ids of one call of /items, which is answered in the event loop: they take a few milliseconds

# --- samples and events (enforced by recording.recorder and recording.event_writer) ---------------------------------

ID_LENGTH = 128  # characters of ids of requests and events
KIND_LENGTH = 64  # characters of a kind of event
ITEM_LENGTH = 1024  # characters of the id of an item in an event
EVENTS = 1_000  # of one call: they are validated in the event loop, which takes a few milliseconds
EVENT_QUEUE = 50_000  # events that wait for the disk; further calls get 503
EVENT_SECONDS = 10.0  # until events are on disk: then a call gets 503, and its client sends them again
SAMPLE_QUEUE = 20_000  # answered requests that wait to be recorded; further ones are dropped
SAMPLE_QUEUE_BYTES = 128_000_000  # of their bodies
RECORD_SECONDS = 3.0  # at shutdown, for writing the last samples and again for the last events

# --- bundles, which are first loaded by a process with these limits -------------------------------------------------

TRIAL_BYTES = 2**30  # of memory, beside that of the libraries,
TRIAL_BYTES_PER_BYTE = 8  # and this for each byte of the files
TRIAL_SECONDS = 60  # of time of the processor,
TRIAL_BYTES_PER_SECOND = 10_000_000  # and a second more for this number of bytes

# --- time and threads -----------------------------------------------------------------------------------------------

MAX_DEADLINE_MS = 60_000  # the longest deadline a request may ask for: it bounds how long old bundles stay in memory
MAX_THREADS = 4  # per worker: more compute threads only compete with the event loop of the same process
BATCH_ATTEMPTS = 3  # a batch with invalid requests is repeated without them, then its requests are computed singly
SHUTDOWN_SECONDS = MAX_DEADLINE_MS // 1000 + 15  # for requests in progress at the end, whatever their deadline
EXIT_SECONDS = 10  # after the last response: a thread that still parses, computes or loads is ended with the process
WORKER_SILENCE_SECONDS = 30  # a worker that does not react is replaced; on a busy machine workers start slowly


def shutdown_seconds(drain: int) -> int:
    """Return the time from the first signal to the end of a process, whatever it does."""
    return drain + SHUTDOWN_SECONDS + EXIT_SECONDS


def max_names(max_body: int) -> int:
    """Return the number of names that all objects of a body may have."""
    return max_body // BYTES_PER_NAME


def max_connections() -> int:
    """Return the number of connections that a worker accepts, which is lower if it may open few files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, files - RESERVED_FILES))
