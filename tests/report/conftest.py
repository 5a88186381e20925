"""One browser for all tests of reports."""

from .browsers import chromium as chromium
from .trace_processor import trace_processor as trace_processor
